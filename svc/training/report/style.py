"""The style sheet of the report: light and dark, readable on a phone."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f262d; --soft: #5b6670; --line: #dfe4e9; --accent: #2f6fb0; --page: #f5f7f9;
  --card: #fff; --warn: #9a4a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7ebee; --soft: #a3aeb8; --line: #2f3740; --accent: #7db4ea; --page: #11161a; --card: #1a2127;
    --warn: #f0b36a; }
  svg { filter: invert(0.9) hue-rotate(180deg); } /* plots have dark lines on a transparent ground */
}
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 8px; }
p { margin: 4px 0; color: var(--soft); }
.cards { display: grid; gap: 16px; margin-top: 16px; grid-auto-flow: dense; }
@media (min-width: 900px) { .cards { grid-template-columns: 1fr 1fr; } }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; min-width: 0; }
.wide { grid-column: 1 / -1; }
.winner { border-left: 4px solid var(--accent); }
.verdict { font-size: 1.25rem; color: var(--ink); line-height: 1.4; }
.score { font-size: 2rem; font-weight: 650; color: var(--ink); line-height: 1.2; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 550; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.long { min-width: 260px; overflow-wrap: anywhere; }
svg { width: 100%; max-width: 460px; height: auto; display: block; }
.plots { display: flex; flex-wrap: wrap; gap: 16px; }
.plots svg { flex: 1 1 300px; }
.warn { color: var(--warn); }
dt { font-weight: 600; margin-top: 6px; }
dd { margin: 0; color: var(--soft); }
@media (max-width: 640px) {
  .stacked thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stacked tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--line); }
  .stacked td { display: flex; gap: 12px; border: 0; padding: 2px 0; min-width: 0; overflow-wrap: anywhere; }
  .stacked td:empty { display: none; }
  .stacked td[data-label]::before { content: attr(data-label); flex: 0 0 38%; color: var(--soft); }
}
"""
