/** A value beside others on one scale: its name, a bar, the value in words. */
export function Bar({ name, share, text, isAccent }: BarProps) {
  return (
    <div class="bar">
      <dt>{name}</dt>
      <dd>
        <span class="track">
          <span class={isAccent ? 'fill accent' : 'fill'} style={{ width: `${100 * share}%` }} />
        </span>
        <span class="bar-value">{text}</span>
      </dd>
    </div>
  );
}

interface BarProps {
  name: string;
  /** 0 to 1: its length. */
  share: number;
  text: string;
  isAccent?: boolean;
}
