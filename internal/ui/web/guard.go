package web

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// maxForm bounds what a request may bring. Bytes.
	maxForm = 1 << 20
	// requestTime bounds how long a page may take to be made.
	requestTime = 60 * time.Second
	// giveTime bounds how long a page waits for an order: for its end if it began at once.
	giveTime = OrderTime + 30*time.Second
)

// policy allows what the pages have and nothing else: a stylesheet and forms to
// ourselves.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guarded puts what holds for each request before the pages.
func (p *Page) guarded(pages http.Handler) http.Handler {
	// Browsers send the origin of a request; foreign ones are refused.
	pages = http.NewCrossOriginProtection().Handler(pages)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		// Not no-referrer: then browsers say of our own forms that they come from nowhere.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if p.c.Secure {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !p.known(r.Host) {
			// A name that somebody else's name server has pointed to us.
			http.Error(w, "this page is not asked by that name; WEBHOSTS in zmailer.conf allows names", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		pages.ServeHTTP(w, r)
	})
}

// known reports whether a request's Host is one of ours.
func (p *Page) known(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return slices.ContainsFunc(p.c.Hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// client returns the address that a request comes from.
func client(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
