/** Files can be dropped anywhere on the page. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { addFiles } from './attachments.tsx';

export function DropTarget() {
  const isDragging = useSignal(false);
  useEffect(() => {
    const listeners = {
      dragover(event: DragEvent) {
        if (!event.dataTransfer?.types.includes('Files')) return;
        event.preventDefault();
        isDragging.value = true;
      },
      dragleave(event: DragEvent) {
        if (event.relatedTarget === null) isDragging.value = false;
      },
      drop(event: DragEvent) {
        event.preventDefault();
        isDragging.value = false;
        void addFiles([...(event.dataTransfer?.files ?? [])]);
      },
    };
    const entries = Object.entries(listeners) as [string, EventListener][];
    for (const [type, listener] of entries) addEventListener(type, listener);
    return () => {
      for (const [type, listener] of entries) removeEventListener(type, listener);
    };
  }, [isDragging]);
  return isDragging.value && <div class="drop-target">Drop to add it to the conversation</div>;
}
