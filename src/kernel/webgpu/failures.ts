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
  /** A refused command, while it may be the consequence of a missing buffer. */
  private refused?: DeviceError;

  /** `generation`: number of the commands that are being recorded; a submission takes all commands of one. */
  constructor(
    device: GPUDevice,
    private readonly generation: () => number,
  ) {
    device.onuncapturederror = ({ error }) => {
      if (isOutOfMemory(error)) this.missing(noMemory(), this.generation());
      else this.refuse(new DeviceError(`The GPU refused a command, which is a bug of Kvasir: ${error.message}`));
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
    // Commands recorded after the shortage have been run: what is refused from now on has another cause.
    if (shortage && generation > shortage.until) this.shortage = undefined;
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
        if (this.pending.size > 0) return;
        if (this.refused && !this.shortage) this.fatal ??= this.refused;
        this.refused = undefined;
      });
    this.pending.add(outcome);
  }

  /** Waits for all allocations so far, and throws if one of them failed. */
  async allocated(): Promise<void> {
    await Promise.all(this.pending);
    this.checkResults(this.generation());
  }

  private missing(error: CapacityError, from: number): void {
    const { shortage } = this;
    this.shortage = {
      error: shortage?.error ?? error,
      from: Math.min(shortage?.from ?? from, from),
      until: this.generation(),
    };
  }

  private refuse(error: DeviceError): void {
    if (this.shortage) return;
    if (this.pending.size > 0) this.refused ??= error;
    else this.fatal ??= error;
  }
}

export const isOutOfMemory = (error: GPUError): boolean => error.constructor.name === 'GPUOutOfMemoryError';

export const noMemory = (bytes?: number, held?: number): CapacityError =>
  new CapacityError(
    `The GPU has no memory left${bytes === undefined ? '' : ` for ${formatBytes(bytes)} more (Kvasir holds ${formatBytes(held ?? 0)} of it)`}. ` +
      "Close conversations, take a smaller context, a codec of fewer bits, or device: 'wasm'.",
  );

const lostError = (reason: string): DeviceError =>
  new DeviceError(`The GPU device was lost (${reason}). Dispose this model and load it again.`);

const disposedError = (): DeviceError =>
  new DeviceError('The GPU was given back (the model was disposed). Load the model again.');
