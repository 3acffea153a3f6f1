/** A kernel before it is compiled. */
import { packedFunctions } from './packed.ts';

/** WGSL as data: the bindings are declared from it, `body` is the rest and has a `main`. */
export interface Kernel {
  /** Says everything that the code depends on: the pipeline is cached by it. */
  name: string;
  /** Words of the uniform `p`: `rows`, or `eps: f32`. u32 unless it says otherwise. */
  params: readonly string[];
  /** Storage: `x: array<f32>`, or `write x: array<f32>`. */
  buffers: readonly string[];
  /** Invocations a workgroup. */
  size: number;
  /** Of which `main(group: vec3u, lane: u32)` is called; with `teams`, the number of the subgroup comes third. */
  body: string;
  teams?: boolean;
  /** WGSL extensions. */
  enable?: readonly string[];
}

/** The whole text of a kernel; `packedDots`: whether WGSL has int8 dots here, or the text must bring its own. */
export function wgsl({ params, buffers, size, body, teams, enable = [] }: Kernel, packedDots = true): string {
  const declared = buffers.map((text, i) => {
    const write = text.startsWith('write ');
    const access = write ? 'storage, read_write' : 'storage, read';
    return `@group(0) @binding(${i + 1}) var<${access}> ${write ? text.slice(6) : text};`;
  });
  return [
    ...enable.map(name => `enable ${name};`),
    `struct Params { ${params.map(name => (name.includes(':') ? name : `${name}: u32`)).join(', ')} }`,
    '@group(0) @binding(0) var<uniform> p: Params;',
    ...declared,
    ...(packedDots ? [] : [packedFunctions(body)]),
    body,
    `@compute @workgroup_size(${size}) fn run(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32${teams ? ', @builtin(subgroup_id) team: u32' : ''}) { main(group, lane${teams ? ', team' : ''}); }`,
  ].join('\n');
}
