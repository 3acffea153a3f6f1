/** A text of the table whose parts in [brackets] are elements. */
export const Marked = ({ text, as: Tag }: { text: string; as: 'kbd' | 'strong' }) => (
  <>{text.split(/\[(.+?)\]/).map((part, i) => (i % 2 === 0 ? part : <Tag key={i}>{part}</Tag>))}</>
);
