"""How the demo page looks: system fonts only, the theme's own colours, one column on a phone."""

CSS = """
.gradio-container {
  --body-text-color-subdued: #57606a; --block-info-text-color: #57606a;
  width: 100% !important; max-width: 1320px !important; margin: 0 auto !important; padding: 16px !important; }
.dark .gradio-container, .dark.gradio-container {
  --body-text-color-subdued: #a9b1bc; --block-info-text-color: #a9b1bc; }
.gradio-container .main.fillable, .gradio-container .html-container { padding: 0 !important; }
footer { display: none !important; }
#zoo-detail:not(:has(section)), #zoo-names:not(:has(ol)) { display: none; }

#zoo-title h1 { font-size: 1.5rem; font-weight: 700; margin: 0; line-height: 1.3; }
#zoo-title p { color: var(--body-text-color-subdued); margin: 2px 0 0; }
.zoo-side { gap: 12px !important; }
#zoo-query .input-container { border: 1px solid var(--border-color-primary);
  border-radius: var(--input-radius); background: var(--input-background-fill); }
#zoo-query .input-container:focus-within { border-color: var(--color-accent); }
#zoo-query .submit-button { margin: 4px; flex: none; align-self: center; }

.zoo-status, .zoo-note { color: var(--body-text-color-subdued); margin: 0 0 8px; font-size: .9rem;
  min-height: 1.35em; overflow-wrap: anywhere; }
.zoo-error { color: var(--body-text-color); background: var(--background-fill-secondary);
  white-space: pre-line; padding: 8px 12px; border-left: 4px solid #d55e00; border-radius: 4px; }
.zoo-heading { font-size: 1rem; font-weight: 600; margin: 0 0 8px; }

.zoo-chip, .zoo-card, .zoo-row { border: 1px solid var(--border-color-primary); cursor: pointer;
  background: var(--block-background-fill); color: var(--body-text-color); text-align: start; }
.zoo-chip:hover, .zoo-card:hover, .zoo-row:hover { border-color: var(--color-accent); }
.zoo-chip:focus-visible, .zoo-card:focus-visible, .zoo-row:focus-visible, .zoo-close:focus-visible {
  outline: 3px solid var(--color-accent); outline-offset: 2px; }
.zoo-chips { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; font-size: .9rem;
  color: var(--body-text-color-subdued); }
.zoo-chip { border-radius: 999px; padding: 4px 11px; }

.zoo-grid, .zoo-names { list-style: none; margin: 0; padding: 0; display: grid; gap: 10px;
  grid-template-columns: repeat(auto-fill, minmax(156px, 1fr)); }
.zoo-names { gap: 6px; margin-bottom: 14px; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); }
.zoo-grid li, .zoo-names li { margin: 0; min-width: 0; }
.zoo-card { width: 100%; height: 100%; display: flex; flex-direction: column; gap: 4px; padding: 8px;
  border-radius: 10px; }
.zoo-row { width: 100%; height: 100%; display: flex; flex-direction: column; padding: 6px 10px; border-radius: 8px; }
.zoo-card img, .zoo-gone { width: 100%; height: 112px; object-fit: contain;
  background: var(--background-fill-secondary); border-radius: 6px; }
.zoo-gone { display: grid; place-items: center; color: var(--body-text-color-subdued); font-size: .8rem; }
.zoo-name { font-size: .9rem; line-height: 1.3; overflow-wrap: anywhere; overflow: hidden;
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.zoo-numbers { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 6px; font-size: .8rem;
  color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
.zoo-numbers span { white-space: nowrap; }
.zoo-numbers b { color: var(--body-text-color); }
.zoo-name + .zoo-numbers { margin-top: auto; }
.zoo-up { color: #0072b2; font-weight: 600; }
.zoo-down { color: #b34700; }
.dark .zoo-up { color: #56b4e9; }
.dark .zoo-down { color: #e69f00; }

.zoo-detail { border: 1px solid var(--border-color-primary); border-radius: 12px; padding: 12px 14px;
  margin-bottom: 14px; background: var(--block-background-fill); scroll-margin-top: 12px; }
.zoo-detail header { display: flex; justify-content: space-between; align-items: start; gap: 12px; }
.zoo-detail h2 { font-size: 1.05rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
.zoo-close { cursor: pointer; padding: 2px 9px; border-radius: 6px; }
.zoo-figures { display: grid; gap: 10px; grid-template-columns: repeat(auto-fill, minmax(144px, 1fr)); }
.zoo-figure { margin: 0; }
.zoo-figure img { width: 100%; display: block; border-radius: 6px; background: #fff; }
.zoo-figure figcaption { text-align: center; font-size: .85rem; padding-top: 3px; overflow-wrap: anywhere; }
.zoo-legend { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin: 10px 0 0;
  font-size: .8rem; color: var(--body-text-color-subdued); }
.zoo-legend i { width: 120px; height: 10px; border-radius: 5px; }

@media (min-width: 860px) { .zoo-side { position: sticky; top: 12px; align-self: flex-start; } }
@media (max-width: 600px) {
  .gradio-container { padding: 10px !important; }
  .zoo-grid, .zoo-names, .zoo-figures { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  #zoo-picture { height: 132px !important; }
}
"""

# One listener on what stays, for buttons that come and go: a click tells the `place` of the button
CLICKS = """
element.addEventListener('click', event => {
  const button = event.target.closest('[data-place]');
  if (button) trigger('click', {place: Number(button.dataset.place)});
});
"""

# A picture that has gone since it was indexed: its card says so, and a click tells why
GONE = """
element.addEventListener('error', event => {
  if (!event.target.closest('.zoo-card')) return;
  const gone = document.createElement('i');
  gone.className = 'zoo-gone';
  gone.textContent = 'cannot be read';
  event.target.replaceWith(gone);
}, true);
"""

# "/" to the query, Escape closes the picture that is open, arrows go from card to card, rows as they stand on the screen
KEYS = """() => {
  if (window.zooKeys) return;
  window.zooKeys = true;
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const typing = event.target.closest('input, textarea, select, [contenteditable]');
    if (event.key === 'Escape') document.querySelector('.zoo-close')?.click();
    else if (event.key === '/' && !typing) {
      event.preventDefault();
      document.querySelector('#zoo-query textarea, #zoo-query input')?.focus();
    } else if (event.key.startsWith('Arrow') && !typing) {
      const cards = [...document.querySelectorAll('.zoo-card')], place = cards.indexOf(document.activeElement);
      if (place < 0) return;
      const top = card => card.getBoundingClientRect().top;
      const columns = cards.filter(card => Math.abs(top(card) - top(cards[0])) < 4).length;
      const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns}[event.key];
      if (cards[place + step]) { event.preventDefault(); cards[place + step].focus(); }
    }
  });
}"""

# On a phone the answer lies below the controls
SHOW_RESULTS = "() => { if (innerWidth < 860) document.getElementById('zoo-status').scrollIntoView(); }"
SHOW_DETAIL = "() => document.querySelector('.zoo-detail')?.scrollIntoView({block: 'nearest'})"
