/** Chooses a model among the files of this computer. */
import { useRef } from 'preact/hooks';
import { useModel } from '../state/connection.ts';

export function ModelFileButton({ label, isDisabled = false }: { label: string; isDisabled?: boolean }) {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" class="button slim" disabled={isDisabled} onClick={() => picker.current?.click()}>
        {label}
      </button>
      <input
        ref={picker}
        type="file"
        hidden
        accept=".gguf"
        onChange={event => {
          const { currentTarget: input } = event;
          const [file] = input.files ?? [];
          if (file) void useModel({ file });
          // The same file can be chosen again after it has changed.
          input.value = '';
        }}
      />
    </>
  );
}
