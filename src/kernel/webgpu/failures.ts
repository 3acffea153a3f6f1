/**
 * What goes wrong on a GPU. WebGPU reports it later, by events and error scopes; here it becomes a typed error at the next
 * await:
 *
 *   fatal      the device was lost, or it refused a command: everything from then on fails with the same error
 *   shortage   a buffer could not be allocated: commands recorded with it fail, what is recorded later works
 */
import { CapacityError, DeviceError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';

interface Shortage {
  error: CapacityError;
  /** Generations of commands that may use the buffer: from its creation until it was known to be missing. */
  from: number;
  until: number;
}

export class Failures {
  /** Resolves if the device goes away by itself. */
  readonly lost: Promise<DeviceError>;
  private fatal?: Error;
  private disposed = false;
  private shortage?: Shortage;
  /** Allocations whose outcome is not known yet. */
  private readonly pending = new Set<Promise<void>>();
  /** The first generation whose commands the open error scope watches. */
  private scopeFrom = 0;

  /**
   * `generation`: number of the commands that are being recorded; a submission takes all commands of one. `nextGeneration`:
   * what is recorded from now on has another number.
   */
  constructor(
    private readonly device: GPUDevice,
    private readonly generation: () => number,
    private readonly nextGeneration: () => void,
  ) {
    // Refused commands are caught by a scope, since the event may come after the results that it spoils.
    device.pushErrorScope('validation');
    device.onuncapturederror = ({ error }) => {
      if (error.constructor.name === 'GPUOutOfMemoryError') this.missing(noMemory(), this.generation());
      else this.fatal ??= refusedError(error);
    };
    this.lost = new Promise(resolve => {
      device.lost.then(({ reason, message }) => {
        this.fatal = this.disposed ? disposedError() : (this.fatal ?? lostError(message || reason));
        if (!this.disposed) resolve(this.fatal as DeviceError);
      });
    });
  }

  /** The owner gives the device up: what still uses it fails, but the device is not lost. */
  dispose(): void {
    this.disposed = true;
    this.fatal ??= disposedError();
  }

  get isFatal(): boolean {
    return this.fatal !== undefined;
  }

  /** Throws if nothing can be recorded any more. */
  check(): void {
    if (this.fatal) throw this.fatal;
  }

  /** Throws if the results of commands of this generation cannot be trusted. */
  checkResults(generation: number): void {
    this.check();
    const { shortage } = this;
    if (shortage && generation >= shortage.from && generation <= shortage.until) throw shortage.error;
  }

  /** Watches an allocation of which commands may be recorded before its outcome is known. `forget`: the buffer is no use. */
  watch(scope: Promise<GPUError | null>, bytes: number, held: number, forget: () => void): void {
    const from = this.generation();
    const outcome = scope
      .catch(() => null)
      .then(error => {
        this.pending.delete(outcome);
        if (error) {
          forget();
          this.missing(noMemory(bytes, held), from);
        }
      });
    this.pending.add(outcome);
  }

  /** Waits for all allocations so far, and throws if one of them failed. */
  async allocated(): Promise<void> {
    const generation = this.generation();
    await Promise.all(this.pending);
    this.checkResults(generation);
  }

  /** Whether commands submitted since the last time were refused: to be awaited before their results are checked. */
  async checkpoint(): Promise<void> {
    const [from, until] = [this.scopeFrom, this.generation() - 1];
    this.scopeFrom = this.generation();
    const scope = this.device.popErrorScope();
    this.device.pushErrorScope('validation');
    const error = await scope.catch(() => null);
    await Promise.all(this.pending);
    const { shortage } = this;
    // What uses a buffer that could not be allocated is refused as well.
    const expected = shortage && shortage.from <= until && shortage.until >= from;
    if (error && !expected) this.fatal ??= refusedError(error);
  }

  private missing(error: CapacityError, from: number): void {
    const { shortage } = this;
    const same = shortage && shortage.until >= from;
    this.shortage = same ? { ...shortage, until: this.generation() } : { error, from, until: this.generation() };
    this.nextGeneration();
  }
}

export const noMemory = (bytes?: number, held?: number): CapacityError =>
  new CapacityError(
    `The GPU has no memory left${bytes === undefined ? '' : ` for ${formatBytes(bytes)} more (Kvasir holds ${formatBytes(held ?? 0)} of it)`}. ` +
      "Close conversations, take a smaller context, a codec of fewer bits, or device: 'wasm'.",
  );

const refusedError = ({ message }: GPUError): DeviceError =>
  new DeviceError(`The GPU refused a command, which is a bug of Kvasir: ${message}`);

const lostError = (reason: string): DeviceError =>
  new DeviceError(`The GPU device was lost (${reason}). Dispose this model and load it again.`);

const disposedError = (): DeviceError =>
  new DeviceError('The GPU was given back (the model was disposed). Load the model again.');
