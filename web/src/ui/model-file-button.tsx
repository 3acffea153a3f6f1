/** Chooses a model, or the profile of the one in use, among the files of this computer. */
import { useRef } from 'preact/hooks';
import { openModelFiles } from '../state/connection.ts';

interface ButtonProps {
  label: string;
  accept?: '.gguf' | '.kvprofile';
  isDisabled?: boolean;
}

export function ModelFileButton({ label, accept = '.gguf', isDisabled = false }: ButtonProps) {
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
        accept={accept}
        onChange={event => {
          const { currentTarget: input } = event;
          const files = [...(input.files ?? [])];
          if (files.length > 0) void openModelFiles(files);
          // The same file can be chosen again after it has changed.
          input.value = '';
        }}
      />
    </>
  );
}
