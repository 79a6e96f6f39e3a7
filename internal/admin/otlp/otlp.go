// Package otlp writes the lives of messages as OpenTelemetry traces: one trace a message,
// a span for each stage and each attempt, in the JSON form of OTLP (opentelemetry-proto
// 1.x, "ExportTraceServiceRequest"). It is pure: who calls it brings the lives, and sends
// the bytes. The identifiers follow from the spool ID, so that the same life has the same
// ones wherever and however often it is written: nothing is carried in the mail for them.
//
// What survives a crash: it keeps nothing.
//
// Diagnostics: none. What a life does not know is left out.
package otlp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"zmailer/internal/admin/trace"
)

// Options are the values beside the lives.
type Options struct {
	Host    string // host.name
	Version string // service.version
	// Addresses includes senders, recipients and answers of other hosts.
	Addresses bool
}

// TraceID returns the identifier of a message's trace, in hexadecimal: the beginning of the
// SHA-256 of its spool ID.
func TraceID(id string) string { return digest(id)[:32] }

// rootID returns the identifier of the span that all others of a message are in.
func rootID(id string) string { return digest(id)[32:48] }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Kinds of spans and codes of a status, as opentelemetry-proto numbers them.
const (
	kindInternal = 1
	kindServer   = 2
	kindClient   = 3
	statusError  = 2
)

// Request returns what a collector is sent: the lives of some messages.
func Request(lives []*trace.Life, o Options) ([]byte, error) {
	var spans []span
	for _, l := range lives {
		spans = append(spans, spansOf(l, o)...)
	}
	resource := attributes{}
	resource.text("service.name", "zmailer")
	resource.text("service.version", o.Version)
	resource.text("host.name", o.Host)
	b, err := json.Marshal(request{[]resourceSpans{{
		Resource:   resourceOf{resource},
		ScopeSpans: []scopeSpans{{scope{"zmailer", o.Version}, spans}},
	}}})
	if err != nil {
		return nil, fmt.Errorf("write a trace: %w", err)
	}
	return b, nil
}

// The messages of opentelemetry-proto, as its JSON has them: 64-bit numbers are strings,
// identifiers hexadecimal.
type (
	request struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resourceOf   `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resourceOf struct {
		Attributes attributes `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	span struct {
		TraceID    string     `json:"traceId"`
		SpanID     string     `json:"spanId"`
		ParentID   string     `json:"parentSpanId,omitempty"`
		Name       string     `json:"name"`
		Kind       int        `json:"kind"`
		Start      nanos      `json:"startTimeUnixNano"`
		End        nanos      `json:"endTimeUnixNano"`
		Attributes attributes `json:"attributes,omitempty"`
		Events     []event    `json:"events,omitempty"`
		Links      []link     `json:"links,omitempty"`
		Status     *status    `json:"status,omitempty"`
	}
	event struct {
		Time       nanos      `json:"timeUnixNano"`
		Name       string     `json:"name"`
		Attributes attributes `json:"attributes,omitempty"`
	}
	link struct {
		TraceID    string     `json:"traceId"`
		SpanID     string     `json:"spanId"`
		Attributes attributes `json:"attributes,omitempty"`
	}
	status struct {
		Code    int    `json:"code"`
		Message string `json:"message,omitempty"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	// value has one of them.
	value struct {
		String *string `json:"stringValue,omitempty"`
		Int    *string `json:"intValue,omitempty"`
		Array  *array  `json:"arrayValue,omitempty"`
	}
	array struct {
		Values []value `json:"values"`
	}
	attributes []attribute
)

// nanos is a time, in nanoseconds since 1970.
type nanos struct{ time.Time }

// MarshalJSON writes it as a string, as 64-bit numbers are.
func (n nanos) MarshalJSON() ([]byte, error) {
	return []byte(`"` + strconv.FormatInt(n.UnixNano(), 10) + `"`), nil
}

// text adds an attribute, if there is something to say.
func (a *attributes) text(key, text string) {
	if text != "" {
		*a = append(*a, attribute{key, value{String: &text}})
	}
}

func (a *attributes) number(key string, n int64) {
	digits := strconv.FormatInt(n, 10)
	*a = append(*a, attribute{key, value{Int: &digits}})
}

func (a *attributes) list(key string, texts []string) {
	if len(texts) == 0 {
		return
	}
	all := array{}
	for i := range texts {
		all.Values = append(all.Values, value{String: &texts[i]})
	}
	*a = append(*a, attribute{key, value{Array: &all}})
}
