/** The kernels that a device would run, as WGSL to read: planned on a device that executes nothing, so no GPU is needed. */

import { formatBytes } from '../../util/units.ts';
import type { KvLayer, KvRun } from '../device.ts';
import { tailBlockTokens } from '../visibility.ts';
import type { AdapterInfo } from './adapter.ts';
import { checkHeadDim, WebGpuDevice, type WebGpuOptions } from './device.ts';
import { Gpu } from './gpu.ts';
import { type Kernel, wgsl } from './kernel.ts';
import { workgroupBytes } from './limits.ts';

/** What the imagined adapter has. */
export interface DumpOptions extends WebGpuOptions {
  /** Lanes of a subgroup; 0 for an adapter without subgroups. */
  subgroupSize: number;
  f16?: boolean;
}

/** Kernels that `work` dispatches, in the order of their first use. */
export function plannedKernels(
  { subgroupSize, f16 = false, ...options }: DumpOptions,
  work: (device: WebGpuDevice) => Promise<void>,
): Promise<Kernel[]> {
  const gpu = new Gpu(idleDevice());
  const info: AdapterInfo = {
    name: 'none',
    software: false,
    features: [],
    subgroups: subgroupSize,
    subgroupMin: subgroupSize,
    f16,
    matrices: options.subgroupMatrices ?? false,
    narrowMatrices: options.subgroupMatrices ?? false,
    packedDots: true,
    limits: gpu.limits,
  };
  return gpu.planKernels(() => work(new WebGpuDevice(gpu, info, options)));
}

/** The kernels that seal one page of a layer, and that attend to it and to the tail with `rows` new rows. */
export function codecKernels(layer: KvLayer, rows: number, options: DumpOptions): Promise<Kernel[]> {
  const { headDim, heads, kvHeads, pageTokens } = options;
  checkHeadDim(headDim);
  return plannedKernels({ horizontalFusion: false, ...options }, async device => {
    const shape = { headDim, kvHeads, pageTokens, sinks: 0, tailTokens: 2 * pageTokens, layers: [layer] };
    const leaf = device.createBlock(layer.valueOffset + layer.values.pageBytes);
    const f16Block = (tokens: number) => device.createBlock(4 * kvHeads * tokens * headDim);
    const sinkBlock = f16Block(1);
    const blockTokens = tailBlockTokens(pageTokens);
    const tail = Array.from({ length: shape.tailTokens / blockTokens }, () => f16Block(blockTokens));
    const errors = device.createTensor(1, 2);
    const view = { shape, leaves: [leaf], firstLeaf: 0, tail, sinkBlock, errors };
    const [q, k, v, out] = [heads, kvHeads, kvHeads, heads].map(n => device.createTensor(rows, n * headDim));
    const runs: KvRun[] = [{ view, row: 0, count: rows, position: pageTokens, sealedPages: 1 }];
    await device.ensureMemory([view]);
    device.seal(0, [{ view, page: 0 }]);
    device.append(0, k, v, runs);
    device.attend(0, q, out, runs, { scale: 1 / Math.sqrt(headDim) });
  });
}

/** A device that allocates nothing and executes nothing, with the limits of a common desktop GPU. */
function idleDevice(): GPUDevice {
  const device = {
    features: new Set(),
    limits: {
      maxStorageBufferBindingSize: 2 ** 31 - 4,
      maxBufferSize: 2 ** 31 - 4,
      maxComputeWorkgroupStorageSize: 32768,
      maxComputeInvocationsPerWorkgroup: 1024,
      maxComputeWorkgroupSizeX: 1024,
      maxStorageBuffersPerShaderStage: 10,
    },
    lost: new Promise(() => {}),
    queue: { writeBuffer() {} },
    createBuffer: ({ size }: GPUBufferDescriptor) => ({ size, destroy() {} }),
    pushErrorScope() {},
    popErrorScope: () => Promise.resolve(null),
  };
  return device as unknown as GPUDevice;
}

/** A page layout (as JSON, see codecs.ts) in the name of a kernel. */
const LAYOUT = /\[\{.*?"kind":"(\w+)".*?\]\]/g;

/** The name of a kernel, with only the kind of its page layouts. */
export const kernelName = ({ name }: Kernel): string => name.replaceAll(LAYOUT, '$1');

/** A kernel's shader, indented, under a comment that says what it is. */
export function dumpKernel(kernel: Kernel): string {
  const { summary, size, params, buffers } = kernel;
  const bytes = workgroupBytes(kernel);
  return [
    `// ${summary}`,
    `// Kernel: ${kernelName(kernel)}`,
    `// Workgroup: ${size} invocations${bytes > 0 ? `, ${formatBytes(bytes)} of workgroup memory` : ''}.`,
    `// Parameters: ${params.map(param => param.name).join(', ')}.`,
    `// Bindings: ${buffers.map(({ name, type, access }, i) => `${i + 1} ${name} (${type}, ${access})`).join(', ')}.`,
    formatWgsl(wgsl(kernel)),
  ].join('\n');
}

/** One statement per line, indented by its depth in braces; short blocks on one line, functions apart. */
function formatWgsl(code: string): string {
  const lines: string[] = [];
  let [line, depth, parentheses] = ['', 0, 0];
  const endLine = () => {
    if (line.trim()) lines.push('  '.repeat(depth) + line.trim());
    line = '';
  };
  for (const [token] of code.matchAll(/\/\/.*|\/\*[\s\S]*?\*\/|\s+|[{};()]|[^\s{};()/]+|\//g)) {
    if (line === '}' && token !== ';' && token !== 'else' && token.trim()) endLine();
    if (/^\/[/*]/.test(token)) {
      endLine();
      line = token;
      endLine();
    } else if (token === '{') {
      line += token;
      endLine();
      depth++;
    } else if (token === '}') {
      endLine();
      depth--;
      line = token;
      if (depth === 0) endLine();
    } else {
      if (token === '(') parentheses++;
      if (token === ')') parentheses--;
      if (line !== '}' || token.trim())
        line += line === '}' ? ` ${token}` : token.trim() ? token : line.endsWith('(') ? '' : ' ';
      if (token === ';' && parentheses === 0) endLine();
    }
  }
  endLine();
  return lines
    .join('\n')
    .replace(SHORT_BLOCK, (block, start, first, second = '') => {
      const line = `${start} ${first}${second && ` ${second}`} }`;
      return line.length <= MAX_LINE ? line : block;
    })
    .replace(BEFORE_FUNCTION, '\n\n');
}

const MAX_LINE = 120;
/** A block of one or two statements. */
const SHORT_BLOCK = /^(.*\{)\n *((?!\/\/)[^{}\n]+)(?:\n *((?!\/\/)[^{}\n]+))?\n *\}$/gm;
/** The line break before a function, or before its comment. */
const BEFORE_FUNCTION = /(?<!\*\/)\n(?=(?:\/\*\*(?:(?!\*\/)[\s\S])*\*\/\n)?(?:fn|@compute) )/g;
