import { describe, expect, it } from 'vitest';
import { InputError } from '../util/errors.ts';
import { parseTiers } from './tiers.ts';

describe('parseTiers', () => {
  it('reads tiers in order', () => {
    expect(parseTiers('host=4GiB, disk=/dir:50GiB,redis=rediss://me:secret@host:6380/2')).toEqual([
      { type: 'host', capacity: 4 * 2 ** 30 },
      { type: 'disk', path: '/dir', capacity: 50 * 2 ** 30 },
      { type: 'redis', urls: ['rediss://me:secret@host:6380/2'], cluster: false },
    ]);
    expect(parseTiers('redis-cluster=redis://a:7000|redis://b:7001')).toEqual([
      { type: 'redis', urls: ['redis://a:7000', 'redis://b:7001'], cluster: true },
    ]);
    expect(parseTiers('opfs=2GiB')).toEqual([{ type: 'opfs', capacity: 2 ** 31 }]);
    expect(parseTiers('disk=/dir:1GB?ttl=30d,redis=redis://host:6379?ttl=12h&timeout=500ms')).toEqual([
      { type: 'disk', path: '/dir', capacity: 1e9, ttlMs: 30 * 24 * 3600e3 },
      { type: 'redis', urls: ['redis://host:6379'], cluster: false, ttlMs: 12 * 3600e3, timeoutMs: 500 },
    ]);
    expect(parseTiers('redis-cluster=redis://a:7000|redis://b:7001?timeout=2s')).toEqual([
      { type: 'redis', urls: ['redis://a:7000', 'redis://b:7001'], cluster: true, timeoutMs: 2000 },
    ]);
    expect(parseTiers('redis=rediss://host:6379?ca=/etc/ca.pem&cert=/a=b.pem&key=k.pem&timeout=1s')).toEqual([
      {
        ...{ type: 'redis', urls: ['rediss://host:6379'], cluster: false, timeoutMs: 1000 },
        tlsFiles: { ca: '/etc/ca.pem', cert: '/a=b.pem', key: 'k.pem' },
      },
    ]);
    expect(parseTiers('disk=/what?/dir:1GB')).toEqual([{ type: 'disk', path: '/what?/dir', capacity: 1e9 }]);
    expect(parseTiers('disk=C:\\cache:1GB')).toEqual([{ type: 'disk', path: 'C:\\cache', capacity: 1e9 }]);
  });

  it.each([
    ['', /"" is not a tier. Write host=4GiB/],
    ['host', /"host" is not a tier/],
    ['host=much', /"much" is not a size/],
    ['disk=/dir', /"disk=\/dir" has no capacity/],
    ['disc=/dir:5GiB', /There is no tier "disc". Did you mean disk\?/],
    ['tape=1GiB', /There is no tier "tape". Write/],
    ['redis=http://:secret@host', /The url of a redis tier is not valid/],
    ['host=1GiB,host=2GiB', /has two host tiers/],
    ['host=1GiB?ttl=1d', /A host tier has no option "ttl". It has none/],
    ['disk=/dir:1GiB?timeout=1s', /A disk tier has no option "timeout". Its options: ttl/],
    ['redis=redis://:secret@host?ttl=soon', /"soon" is not a time. Write .* 12h/],
    ['redis=redis://:secret@a,redis=redis://:secret@b', /"\.\.\.@b" has two redis tiers/],
    ['redis://:secret@a', /"\.\.\.@a" is not a tier/],
    ['redis://:secret@a=b', /There is no tier "\.\.\.@a"/],
  ])('explains what is wrong with %j', (text, message) => {
    expect(() => parseTiers(text)).toThrow(InputError);
    expect(() => parseTiers(text)).toThrow(message);
    expect(() => parseTiers(text)).not.toThrow(/secret/);
  });
});
