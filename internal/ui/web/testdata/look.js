// What is wrong with the page that is shown, as a list of sentences: for people with a
// narrow screen, without a mouse, with weak eyes, or who have it read to them.
(() => {
	const wrong = [];
	const name = e => e.tagName.toLowerCase() + (e.className && e.className.baseVal === undefined ? '.' + e.className : '') + ' ' + JSON.stringify((e.textContent || e.value || '').trim().slice(0, 40));
	const seen = e => { const r = e.getBoundingClientRect(), s = getComputedStyle(e); return r.width > 1 && r.height > 1 && s.visibility !== 'hidden' && s.display !== 'none'; };
	const page = document.documentElement;
	const screen = page.clientWidth; // innerWidth grows with what is too wide
	if (page.scrollWidth > screen) {
		const wide = [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > screen + 1 && !e.closest('.wide') && !e.closest('svg')).map(name);
		wrong.push('it is ' + page.scrollWidth + ' wide on a screen of ' + screen + ': ' + wide.slice(0, 5).join(', '));
	}
	if (!page.lang || !document.title) wrong.push('it has no language or no title');
	if (document.querySelectorAll('h1').length !== 1) wrong.push('it has ' + document.querySelectorAll('h1').length + ' first headings');
	for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea'))
		if (!e.labels.length && !e.getAttribute('aria-label')) wrong.push('a field without a label: ' + e.name);
	for (const e of document.querySelectorAll('a[href], button'))
		if (!e.textContent.trim() && !e.getAttribute('aria-label')) wrong.push('a link or button without a name: ' + e.outerHTML.slice(0, 80));
	for (const e of document.querySelectorAll('svg'))
		if (!e.getAttribute('aria-label')) wrong.push('a picture that says nothing to who cannot see it');
	for (const e of document.querySelectorAll('table'))
		if (!e.querySelector('th')) wrong.push('a table without headings');
	for (const e of document.querySelectorAll('[tabindex]'))
		if (e.tabIndex > 0) wrong.push('an order of its own for Tab: ' + name(e));
	if (screen < 600)
		for (const e of document.querySelectorAll('button, nav a, input:not([type=hidden]):not([type=checkbox])'))
			if (seen(e) && e.getBoundingClientRect().height < 24) wrong.push('too low for a finger: ' + name(e));

	// Contrast of text with what is behind it: WCAG 2.2, 1.4.3.
	const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
	const light = ([r, g, b]) => { const f = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
	const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
	const told = new Set();
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || e.tagName === 'TITLE' || e.tagName === 'OPTION' || !seen(e)) continue;
		const s = getComputedStyle(e), color = parse(e.closest('svg') ? s.fill : s.color);
		const a = light(color), b = light(behind(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		const large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
		if (ratio < (large ? 3 : 4.5)) {
			const kind = e.tagName + '.' + e.getAttribute('class') + ' ' + s.color;
			if (!told.has(kind)) wrong.push('weak contrast ' + ratio.toFixed(1) + ': ' + name(e));
			told.add(kind);
		}
	}
	return wrong;
})()
