/**
 * How far a long piece of work has come, on stderr: a bar on a terminal, a line now and then elsewhere (a log, CI),
 * nothing when asked to be quiet. stdout stays free for results.
 */
import { formatFileSize } from '../units.ts';

export interface ProgressOptions {
  title: string;
  /** May come later, with an update; without one there is no bar, only the count. */
  total?: number;
  /** `B` is written as kB, MB, GB; anything else follows the number (`tokens`). */
  unit?: string;
  quiet?: boolean;
  stream?: ProgressStream;
  /** Milliseconds; for tests. */
  now?: () => number;
}

export interface ProgressStream {
  isTTY?: boolean;
  columns?: number;
  write(text: string): unknown;
}

export interface Progress {
  update(done: number, total?: number): void;
  /** A line of its own, above the bar. */
  note(line: string): void;
  /** Takes the bar away, and leaves a line in its place if one is given. Safe to call twice. */
  end(line?: string): void;
}

const redrawMs = 100;
const plainMs = 10_000;
const windowMs = 8000; // the rate is that of the last seconds: a pause or a resumed part does not colour it for long
const settleMs = 2000; // before that, the time left is a guess

export function createProgress(options: ProgressOptions): Progress {
  const { quiet = false, stream = process.stderr, now = Date.now } = options;
  const terminal = stream.isTTY === true && process.env.TERM !== 'dumb';
  const samples: Sample[] = [];
  let pace = createPace();
  let total = options.total;
  let drawn = Number.NEGATIVE_INFINITY;
  let shown = '';
  let paused = false;

  const clear = () => {
    if (shown && terminal) stream.write('\r\x1b[2K');
  };
  const draw = () => {
    const line = progressLine(
      { ...options, total },
      samples,
      pace.left(total),
      terminal ? (stream.columns || 80) - 1 : undefined,
    );
    if (!terminal) stream.write(`${line}\n`);
    else if (line !== shown) stream.write(`\r\x1b[2K${line}`);
    shown = line;
    drawn = now();
  };
  return {
    update(done, newTotal = total) {
      total = newTotal;
      const time = now();
      // Starting over is no negative speed.
      if (paused || done < (samples.at(-1)?.done ?? 0)) {
        samples.length = 0;
        pace = createPace();
      }
      paused = false;
      pace.add({ time, done });
      samples.push({ time, done });
      while (samples.length > 2 && time - samples[1].time >= windowMs) samples.shift();
      const due = time - drawn >= (terminal ? redrawMs : plainMs);
      if (!quiet && (due || (terminal && done === total))) draw();
    },
    note(line) {
      if (quiet) return;
      // What is worth a note (a wait, a retry) is a pause, which is no slowness: the speed is measured anew.
      paused = true;
      clear();
      stream.write(`${line}\n`);
      if (terminal && shown) stream.write(shown);
    },
    end(line) {
      if (quiet) return;
      clear();
      shown = '';
      if (line) stream.write(`${line}\n`);
    },
  };
}

interface Sample {
  time: number;
  done: number;
}

/**
 * How long the rest takes, by the speed of about the last half of the time so far: work that goes by turns (codecs of
 * different speed, reading and scoring) has a steady time left, and a change for good shows in the end.
 */
function createPace() {
  let first: Sample | undefined;
  let last: Sample | undefined;
  let rate: number | undefined;
  return {
    add(now: Sample) {
      const ms = last ? now.time - last.time : 0;
      if (last && first && ms > 0) {
        const latest = (now.done - last.done) / ms;
        const memory = Math.max(settleMs, now.time - first.time) / 2;
        rate = rate === undefined ? latest : rate + (latest - rate) * (1 - Math.exp(-ms / memory));
      }
      first ??= now;
      if (!last || ms > 0) last = now;
    },
    /** Seconds. */
    left(total?: number): number | undefined {
      if (!first || !last || !rate || total === undefined || last.time - first.time < settleMs) return undefined;
      return total > last.done ? (total - last.done) / rate / 1000 : undefined;
    },
  };
}

/** `title [####------]  42% 1.2 / 2.9 GB, 31.0 MB/s, 0:54 left`; the bar takes what room a line of `width` leaves. */
function progressLine(
  { title, total, unit = '' }: ProgressOptions,
  samples: Sample[],
  left?: number,
  width?: number,
): string {
  const amount = (value: number) => (unit === 'B' ? formatFileSize(value) : `${round(value)}${unit && ` ${unit}`}`);
  const last = samples.at(-1) ?? { time: 0, done: 0 };
  const seconds = (last.time - (samples[0]?.time ?? 0)) / 1000;
  const rate = seconds > 0 ? (last.done - samples[0].done) / seconds : 0;
  const facts = [total === undefined ? amount(last.done) : `${amount(last.done)} / ${amount(total)}`];
  if (rate > 0) facts.push(`${amount(rate)}/s`);
  if (left !== undefined) facts.push(`${clock(left)} left`);
  const share = total ? Math.min(last.done / total, 1) : undefined;
  const percent = share === undefined ? '' : `${String(Math.floor(share * 100)).padStart(3)}% `;
  const text = percent + facts.join(', ');
  if (width === undefined) return `${title} ${text.trimStart()}`;

  const titleRoom = Math.max(width - text.length - 1, 0);
  const head =
    title.length > titleRoom ? `${title.slice(0, Math.max(titleRoom - 3, 0))}...`.slice(0, titleRoom) : title;
  const room = Math.min(width - head.length - text.length - 4, 40);
  if (share === undefined || room < 8) return `${head} ${text}`.slice(0, width);
  const filled = Math.round(share * room);
  return `${head} [${'#'.repeat(filled)}${'-'.repeat(room - filled)}] ${text}`;
}

const round = (value: number) =>
  value < 10 && !Number.isInteger(value) ? value.toFixed(1) : String(Math.round(value));

function clock(seconds: number): string {
  const whole = Math.ceil(seconds);
  const two = (value: number) => String(value).padStart(2, '0');
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
