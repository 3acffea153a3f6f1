import './style/tokens.css';
import './style/layout.css';
import './style/chat.css';
import './style/markdown.css';
import './style/panels.css';
import { render } from 'preact';
import { loadConversations } from './state/chat.ts';
import { reconnect } from './state/connection.ts';
import { App } from './ui/app.tsx';

render(<App />, document.getElementById('app')!);
void reconnect();
void loadConversations();

if (import.meta.env.PROD && 'serviceWorker' in navigator) void navigator.serviceWorker.register('./sw.js');
