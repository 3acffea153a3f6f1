/** Icons: 24 x 24, drawn with lines. Decorative: their buttons have names. */

const icon = (path: string) => () => (
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
    <path d={path} />
  </svg>
);

export const PlusIcon = icon('M12 5v14M5 12h14');
export const SendIcon = icon('M12 19V5m-6 6 6-6 6 6');
export const StopIcon = icon('M7 7h10v10H7z');
export const AttachIcon = icon(
  'm20 11-8.600 8.600a5 5 0 0 1-7-7L13 4a3.300 3.300 0 0 1 4.700 4.700l-8.600 8.600a1.700 1.700 0 0 1-2.400-2.400L14.500 7',
);
export const EditIcon = icon('M4 20h4L19 9l-4-4L4 16zm9-13 4 4');
export const RetryIcon = icon('M20 11a8 8 0 1 0-2.300 6.300M20 4v7h-7');
export const ForkIcon = icon(
  'M6 3v12m0 0a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM18 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zm0 0a9 9 0 0 1-9 9',
);
export const CopyIcon = icon('M9 9h11v11H9zM5 15H4V4h11v1');
export const CheckIcon = icon('M5 13l4 4L19 7');
export const DeleteIcon = icon('M4 7h16M9 7V4h6v3m-9 0 1 13h10l1-13M10 11v6m4-6v6');
export const PreviousIcon = icon('M14 6l-6 6 6 6');
export const NextIcon = icon('M10 6l6 6-6 6');
export const DownIcon = icon('M12 5v14m-6-6 6 6 6-6');
export const CloseIcon = icon('M6 6l12 12M18 6 6 18');
export const MenuIcon = icon('M4 7h16M4 12h16M4 17h16');
export const DocumentIcon = icon('M6 3h8l4 4v14H6zm8 0v4h4M9 12h6M9 16h6');
export const CompareIcon = icon('M4 5h7v14H4zm9 0h7v14h-7z');
export const GaugeIcon = icon('M5 18a8.500 8.500 0 1 1 14 0M12 14l4-5');
