package web

import (
	"bytes"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
)

//go:embed page
var files embed.FS

// templates are read when the first page is asked for: zmctl's other commands do not
// need them.
var templates = sync.OnceValue(func() map[string]*template.Template {
	all := map[string]*template.Template{}
	base := template.Must(template.New("base.html").Funcs(template.FuncMap{
		"time": stamp, "short": shortStamp, "count": human.Count, "plural": human.Plural, "more": func(all, shown int) int { return max(0, all-shown) }, "cut": human.Cut, "span": spanSeconds, "ago": ago, "size": human.Size, "words": func(r view.Recipient) string { return words(&r) },
		"link": queueLink, "threadLink": threadLink, "messageLink": messageLink, "suspendLink": suspendLink, "agename": func(i int) string { return AgeName(i) },
		"verbs": func() []verb { return verbs() },
	}).ParseFS(files, "page/base.html", "page/parts.html"))
	for _, name := range []string{"login", "overview", "queue", "message", "threads", "thread", "orders", "order", "confirm", "done", "suspensions", "suspend", "search", "trouble"} {
		all[name] = template.Must(template.Must(base.Clone()).ParseFS(files, "page/"+name+".html"))
	}
	return all
})

// frame is what each page has around it.
type frame struct {
	Title    string
	Hostname string
	Who      string // "": no user is logged in
	CSRF     string
	Write    bool
	Refresh  int // seconds; 0: never
	At       time.Time
	Place    string // of the menu
	Page     any
}

// titles of the pages.
var titles = map[string]string{
	"login": "Log in", "overview": "Overview", "queue": "Queue", "message": "Message", "threads": "Threads", "thread": "Thread",
	"orders": "Orders", "order": "Order", "confirm": "Sure?", "suspensions": "Suspensions", "suspend": "Sure?", "search": "Search", "done": "Done", "trouble": "Trouble",
}

// renderer makes pages of templates.
type renderer struct {
	hostname string
	now      func() time.Time
	log      *slog.Logger
}

// render writes a page. It is made whole before the first byte goes out.
func (r *renderer) render(w http.ResponseWriter, code int, name string, v *visit, page any) {
	f := frame{Title: titles[name], Hostname: r.hostname, At: r.now(), Place: name, Page: page}
	if v != nil {
		f.Who, f.CSRF, f.Write = v.who, v.csrf, v.write
		if n, err := strconv.Atoi(v.r.FormValue("refresh")); err == nil && name == "overview" && n >= 5 && n <= 3600 {
			f.Refresh = n
		}
	}
	var b bytes.Buffer
	if err := templates()[name].Execute(&b, &f); err != nil {
		r.log.Error("page-failed", "page", name, "reason", err)
		http.Error(w, "the page cannot be made; the log has the reason", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	// Who does not read it has gone.
	_, _ = w.Write(visible(b.Bytes()))
}

// visible shows as its code what cannot be seen in the text of a page, and what would turn
// round the dates and states that stand beside an address. The pages themselves have no such
// characters. Tags stay as they are: fields and links are sent back as they came.
func visible(page []byte) []byte {
	if !bytes.ContainsFunc(page, human.Unseen) {
		return page
	}
	var b bytes.Buffer
	for len(page) > 0 {
		i := bytes.IndexByte(page, '<')
		if i < 0 {
			i = len(page)
		}
		for line := range bytes.Lines(page[:i]) {
			text, newline := bytes.CutSuffix(line, []byte{'\n'})
			b.WriteString(human.Clean(string(text)))
			if newline {
				b.WriteByte('\n')
			}
		}
		_, rest, _ := bytes.Cut(page[i:], []byte{'>'})
		b.Write(page[i : len(page)-len(rest)])
		page = rest
	}
	return b.Bytes()
}

// fail shows what went wrong.
func (r *renderer) fail(v *visit, code int, text string) {
	r.render(v.w, code, "trouble", v, map[string]any{"Code": code, "Text": text})
}

func (r *renderer) failed(v *visit, page string, err error) {
	if errors.Is(err, ErrNotFound) {
		r.fail(v, http.StatusNotFound, clean(err.Error()))
		return
	}
	r.log.Error("page-failed", "page", page, "reason", err)
	r.fail(v, http.StatusInternalServerError, clean(err.Error()))
}

// asset returns a file that all pages name.
func asset(name, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		b, err := files.ReadFile("page/" + name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "max-age=300")
		_, _ = w.Write(b)
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// shortStamp returns a time near now, for columns.
func shortStamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2 Jan 15:04:05")
}

// seconds are whole ones, rounded up.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

func spanSeconds(n int64) string { return human.Span(time.Duration(n) * time.Second) }

func ago(t time.Time) string { return human.Span(time.Since(t)) }

// words describes a recipient behind its state.
func words(r *view.Recipient) string {
	return strings.TrimPrefix(strings.TrimPrefix(r.Words(time.Now()), r.State), ", ")
}

// clean makes text from outside safe to display on one line.
func clean(s string) string { return human.Clean(strings.ReplaceAll(s, "\n", " ")) }

func escape(s string) string { return url.QueryEscape(s) }

func queueLink(channel, host string) string {
	return "/queue?" + url.Values{"channel": {channel}, "host": {host}}.Encode()
}

func threadLink(channel, host string) string {
	return "/thread?" + url.Values{"channel": {channel}, "host": {host}}.Encode()
}

func suspendLink(channel, host string) string {
	return "/suspensions?" + url.Values{"channel": {channel}, "host": {host}}.Encode()
}

func messageLink(id string) string { return "/message/" + url.PathEscape(id) }
