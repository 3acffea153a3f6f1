/**
 * GPU failures. WebGPU reports them later, through events and error scopes; this turns them into a typed error at the next
 * await:
 *
 *   fatal               the device was lost or refused a command: everything after that fails with the same error
 *   failed allocation   commands recorded with the buffer fail; commands recorded later work
 */
import { CapacityError, DeviceError } from '../../util/errors.ts';
import { formatBytes } from '../../util/units.ts';

interface FailedAllocation {
  error: CapacityError;
  /** Generations of commands that may use the buffer: from its creation until the failure was known. */
  firstGeneration: number;
  lastGeneration: number;
}

export class Failures {
  /** Resolves if the device is lost. */
  readonly lost: Promise<DeviceError>;
  private fatal?: Error;
  private disposed = false;
  private failedAllocation?: FailedAllocation;
  /** Allocations whose result is not known yet. */
  private readonly pendingAllocations = new Set<Promise<void>>();
  /** The first generation whose commands the open error scope watches. */
  private scopeFrom = 0;

  /** `generation`: of the commands being recorded; each submission is one. `nextGeneration` starts another. */
  constructor(
    private readonly device: GPUDevice,
    private readonly generation: () => number,
    private readonly nextGeneration: () => void,
  ) {
    // An error scope, since the event may arrive after the invalid results.
    device.pushErrorScope('validation');
    device.onuncapturederror = ({ error }) => {
      if (error.constructor.name === 'GPUOutOfMemoryError')
        this.recordFailedAllocation(outOfMemoryError(), this.generation());
      else this.fatal ??= refusedError(error);
    };
    this.lost = new Promise(resolve => {
      device.lost.then(({ reason, message }) => {
        this.fatal = this.disposed ? disposedError() : (this.fatal ?? lostError(message || reason));
        if (!this.disposed) resolve(this.fatal as DeviceError);
      });
    });
  }

  /** The owner released the device: further use fails, but `lost` does not resolve. */
  dispose(): void {
    this.disposed = true;
    this.fatal ??= disposedError();
  }

  get isFatal(): boolean {
    return this.fatal !== undefined;
  }

  throwIfFatal(): void {
    if (this.fatal) throw this.fatal;
  }

  /** Throws if results of this generation are invalid. */
  throwIfInvalid(generation: number): void {
    this.throwIfFatal();
    const { failedAllocation } = this;
    if (
      failedAllocation &&
      generation >= failedAllocation.firstGeneration &&
      generation <= failedAllocation.lastGeneration
    )
      throw failedAllocation.error;
  }

  /** Watches an allocation while commands with the buffer are recorded. Calls `forget` if it failed. */
  watchAllocation(scope: Promise<GPUError | null>, bytes: number, held: number, forget: () => void): void {
    const from = this.generation();
    const outcome = scope
      .catch(() => null)
      .then(error => {
        this.pendingAllocations.delete(outcome);
        if (error) {
          forget();
          this.recordFailedAllocation(outOfMemoryError(bytes, held), from);
        }
      });
    this.pendingAllocations.add(outcome);
  }

  /** Waits for all allocations so far. Throws if one failed. */
  async waitForAllocations(): Promise<void> {
    const generation = this.generation();
    await Promise.all(this.pendingAllocations);
    this.throwIfInvalid(generation);
  }

  /** Checks the commands submitted since the last call. Await it before `throwIfInvalid`. */
  async checkSubmitted(): Promise<void> {
    const [from, until] = [this.scopeFrom, this.generation() - 1];
    this.scopeFrom = this.generation();
    const scope = this.device.popErrorScope();
    this.device.pushErrorScope('validation');
    const error = await scope.catch(() => null);
    await Promise.all(this.pendingAllocations);
    const { failedAllocation } = this;
    // Commands with a buffer that could not be allocated are refused too.
    const expected =
      failedAllocation && failedAllocation.firstGeneration <= until && failedAllocation.lastGeneration >= from;
    if (error && !expected) this.fatal ??= refusedError(error);
  }

  private recordFailedAllocation(error: CapacityError, firstGeneration: number): void {
    const { failedAllocation: last } = this;
    const lastGeneration = this.generation();
    const first = last && last.lastGeneration >= firstGeneration ? last : { error, firstGeneration };
    this.failedAllocation = { ...first, lastGeneration };
    this.nextGeneration();
  }
}

export const outOfMemoryError = (bytes?: number, held?: number): CapacityError =>
  new CapacityError(
    option =>
      `The GPU is out of memory${bytes === undefined ? '' : `: it could not allocate ${formatBytes(bytes)} (Kvasir has ${formatBytes(held ?? 0)})`}. ` +
      `Close conversations, or use a smaller ${option('context')}, a codec with fewer bits, or ${option('device', 'wasm')}.`,
  );

const refusedError = ({ message }: GPUError): DeviceError =>
  new DeviceError(`The GPU refused a command; this is a bug in Kvasir: ${message}`);

const lostError = (reason: string): DeviceError =>
  new DeviceError(`The GPU device was lost (${reason}). Dispose this model and load it again.`);

const disposedError = (): DeviceError =>
  new DeviceError('The GPU device was released because the model was disposed. Load the model again.');
