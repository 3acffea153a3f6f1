/** strftime for templates. Names are always English: a prompt must not depend on the machine's locale. */
const MONTHS = 'January February March April May June July August September October November December'.split(' ');
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');

/** `%-d` is `%d` without the leading zero. */
export function strftime(date: Date, format: string): string {
  const two = (n: number) => String(n).padStart(2, '0');
  const month = MONTHS[date.getMonth()];
  const day = DAYS[date.getDay()];
  const [year, hours] = [date.getFullYear(), date.getHours()];
  // In UTC, where every day has 24 hours.
  const dayOfYear = (Date.UTC(year, date.getMonth(), date.getDate()) - Date.UTC(year, 0, 0)) / (24 * 3600 * 1000);
  const parts: Record<string, string> = {
    Y: String(year),
    y: two(year % 100),
    m: two(date.getMonth() + 1),
    d: two(date.getDate()),
    B: month,
    b: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    j: String(dayOfYear).padStart(3, '0'),
    H: two(hours),
    I: two(hours % 12 || 12),
    p: hours < 12 ? 'AM' : 'PM',
    M: two(date.getMinutes()),
    S: two(date.getSeconds()),
    '%': '%',
  };
  return format.replace(/%(-?)([a-zA-Z%])/g, (all, flag: string, letter: string) => {
    const part = parts[letter] ?? all;
    return flag ? part.replace(/^0+(?=\d)/, '') : part;
  });
}
