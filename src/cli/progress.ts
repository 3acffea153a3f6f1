/**
 * Progress of long work on stderr: a bar on a terminal, a line every ten seconds elsewhere (a log, CI), nothing if
 * `quiet`. stdout stays free for results.
 */
import { formatFileSize } from '../util/units.ts';

export interface ProgressOptions {
  title: string;
  /** May be given later by `update`; without a total there is no bar, only the count. */
  total?: number;
  /** `B` is formatted as kB, MB, GB; any other unit follows the number (`12 tokens`). */
  unit?: string;
  quiet?: boolean;
  stream?: ProgressStream;
  /** The clock in milliseconds; for tests. */
  now?: () => number;
}

export interface ProgressStream {
  isTTY?: boolean;
  columns?: number;
  write(text: string): unknown;
}

export interface Progress {
  update(done: number, total?: number): void;
  /** Prints a line above the bar. */
  note(line: string): void;
  /** Removes the bar and prints `line`, if given, in its place. Safe to call twice. */
  end(line?: string): void;
}

const REDRAW_MS = 100;
const LOG_INTERVAL_MS = 10_000;
const RATE_WINDOW_MS = 8000; // so that a pause or a resumed part stops affecting the rate soon
const MIN_ETA_MS = 2000; // before that, an estimate of the time left is a guess
const MIN_RATE = 0.1; // per second; slower work is shown in seconds per unit

export function createProgress(options: ProgressOptions): Progress {
  const { quiet = false, stream = process.stderr, now = Date.now } = options;
  const terminal = stream.isTTY === true && process.env.TERM !== 'dumb';
  const samples: Sample[] = [];
  let pace = createEtaEstimator();
  let total = options.total;
  let drawn = Number.NEGATIVE_INFINITY;
  let shown = '';
  let paused = false;

  const clear = () => {
    if (shown && terminal) stream.write('\r\x1b[2K');
  };
  const draw = () => {
    const line = formatProgress(
      { ...options, total },
      samples,
      pace,
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
      // A restart must not show as a negative rate.
      if (paused || done < (samples.at(-1)?.done ?? 0)) {
        samples.length = 0;
        pace = createEtaEstimator();
      }
      paused = false;
      pace.add({ time, done });
      samples.push({ time, done });
      while (samples.length > 2 && time - samples[1].time >= RATE_WINDOW_MS) samples.shift();
      const due = time - drawn >= (terminal ? REDRAW_MS : LOG_INTERVAL_MS);
      if (!quiet && (due || (terminal && done === total))) draw();
    },
    note(line) {
      if (quiet) return;
      // A note (waiting, retrying) marks a pause: it must not lower the measured rate.
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

/** One progress bar after the other, for work in phases. */
export function createPhaseBars<Phase>(optionsOf: (phase: Phase) => ProgressOptions) {
  let current: Phase | undefined;
  let bar: Progress | undefined;
  return {
    update(phase: Phase, done: number, total: number) {
      if (phase !== current) {
        bar?.end();
        bar = createProgress(optionsOf(phase));
      }
      current = phase;
      bar?.update(done, total);
    },
    end: () => bar?.end(),
  };
}

interface Sample {
  time: number;
  done: number;
}

/**
 * Estimates the time left from a decaying average of the rate, over about the last half of the time so far. Alternating
 * fast and slow phases (codecs, reading and scoring) give a steady estimate, and a lasting change shows in the end.
 */
function createEtaEstimator() {
  let first: Sample | undefined;
  let last: Sample | undefined;
  let rate: number | undefined;
  return {
    add(now: Sample) {
      const ms = last ? now.time - last.time : 0;
      if (last && first && ms > 0) {
        const latest = (now.done - last.done) / ms;
        const decayMs = Math.max(MIN_ETA_MS, now.time - first.time) / 2;
        rate = rate === undefined ? latest : rate + (latest - rate) * (1 - Math.exp(-ms / decayMs));
      }
      first ??= now;
      if (!last || ms > 0) last = now;
    },
    /** Per second. */
    rate: () => 1000 * (rate ?? 0),
    /** Seconds. */
    secondsLeft(total?: number): number | undefined {
      if (!first || !last || !rate || total === undefined || last.time - first.time < MIN_ETA_MS) return undefined;
      return total > last.done ? (total - last.done) / rate / 1000 : undefined;
    },
  };
}

/** `title [####------]  42% 12 / 30 items, 12 s each, 3:36 left`; the bar fills the rest of `width`. */
function formatProgress(
  { title, total, unit = '' }: ProgressOptions,
  samples: Sample[],
  pace: ReturnType<typeof createEtaEstimator>,
  width?: number,
): string {
  const amount = (value: number) =>
    unit === 'B' ? formatFileSize(value) : `${formatNumber(value)}${unit && ` ${unit}`}`;
  const last = samples.at(-1) ?? { time: 0, done: 0 };
  const seconds = (last.time - (samples[0]?.time ?? 0)) / 1000;
  const latest = seconds > 0 ? (last.done - samples[0].done) / seconds : 0;
  // Items may be done several at a time: just after such a pause, the latest rate says nothing.
  const rate = unit === 'B' ? latest : pace.rate();
  const left = pace.secondsLeft(total);
  const done = unit === 'B' ? amount(last.done) : formatNumber(last.done);
  const facts = [total === undefined ? amount(last.done) : `${done} / ${amount(total)}`];
  if (rate > 0) facts.push(rate < MIN_RATE ? `${formatNumber(1 / rate)} s each` : `${amount(rate)}/s`);
  if (left !== undefined) facts.push(`${formatClock(left)} left`);
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

const formatNumber = (value: number) =>
  value < 10 && !Number.isInteger(value) ? value.toFixed(1) : String(Math.round(value));

function formatClock(seconds: number): string {
  const whole = Math.ceil(seconds);
  const two = (value: number) => String(value).padStart(2, '0');
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
