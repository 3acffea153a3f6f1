/** A kernel before it is compiled: WGSL, with its parameters and bindings as data. */
import { packedFunctions } from './packed-dots.ts';

/** A member of the uniform struct `p`. */
export interface Param {
  name: string;
  type: 'u32' | 'f32';
}

/** A storage buffer: `name` is an array of `type` in the kernel's text. */
export interface BufferBinding {
  name: string;
  type: string;
  access: 'read' | 'read_write';
}

export const u32 = (...names: string[]): Param[] => names.map(name => ({ name, type: 'u32' }));
export const f32 = (...names: string[]): Param[] => names.map(name => ({ name, type: 'f32' }));

export const readBuffer = (name: string, type: string): BufferBinding => ({ name, type, access: 'read' });
export const writeBuffer = (name: string, type: string): BufferBinding => ({ name, type, access: 'read_write' });

/** Only those that the text indexes: adapters limit how many a kernel may bind. */
export const usedBuffers = (buffers: readonly BufferBinding[], text: string): BufferBinding[] =>
  buffers.filter(({ name }) => text.includes(`${name}[`));

export interface Kernel {
  /** Names everything that the text depends on: pipelines are cached by it. */
  name: string;
  /** One line: what it computes. */
  summary: string;
  params: readonly Param[];
  buffers: readonly BufferBinding[];
  /** Invocations per workgroup. */
  size: number;
  /** Declares `main(group: vec3u, lane: u32)`; with `subgroupId`, the subgroup's number is its third argument. */
  body: string;
  subgroupId?: boolean;
  /** WGSL extensions. */
  enable?: readonly string[];
}

/** The complete shader. `packedDots`: whether WGSL has int8 dot products here, or the shader must define them. */
export function wgsl({ params, buffers, size, body, subgroupId, enable = [] }: Kernel, packedDots = true): string {
  const builtins = ['@builtin(workgroup_id) group: vec3u', '@builtin(local_invocation_index) lane: u32'];
  if (subgroupId) builtins.push('@builtin(subgroup_id) subgroup: u32');
  return [
    ...enable.map(name => `enable ${name};`),
    `struct Params { ${params.map(({ name, type }) => `${name}: ${type}`).join(', ')} }`,
    '@group(0) @binding(0) var<uniform> p: Params;',
    ...buffers.map(
      ({ name, type, access }, i) => `@group(0) @binding(${i + 1}) var<storage, ${access}> ${name}: array<${type}>;`,
    ),
    ...(packedDots ? [] : [packedFunctions(body)]),
    body,
    `@compute @workgroup_size(${size}) fn run(${builtins.join(', ')}) { main(group, lane${subgroupId ? ', subgroup' : ''}); }`,
  ].join('\n');
}
