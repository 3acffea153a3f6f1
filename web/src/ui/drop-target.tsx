/** Files can be dropped anywhere on the page. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { isModelFile, isProfileFile, openModelFiles } from '../state/connection.ts';
import { texts } from '../texts/index.ts';
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
        const files = [...(event.dataTransfer?.files ?? [])];
        if (files.some(file => isModelFile(file) || isProfileFile(file))) void openModelFiles(files);
        else void addFiles(files);
      },
    };
    const entries = Object.entries(listeners) as [string, EventListener][];
    for (const [type, listener] of entries) addEventListener(type, listener);
    return () => {
      for (const [type, listener] of entries) removeEventListener(type, listener);
    };
  }, [isDragging]);
  return isDragging.value && <div class="drop-target">{texts.app.drop}</div>;
}
