package otlp

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"zmailer/internal/admin/trace"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logging"
)

const (
	spoolID  = "S9978195A28Cb3lTyDjf"
	reportID = "S9977888A28Cb3rHWANz"
)

// life returns what these lines tell.
func life(t *testing.T, id string, accepted time.Time, text string) *trace.Life {
	t.Helper()
	var steps []trace.Step
	for line := range strings.Lines(text) {
		l, ok := logging.ParseLine([]byte(strings.TrimSpace(line)))
		if !ok {
			t.Fatalf("no line of a log: %s", line)
		}
		if s, ok := trace.FromLog(&l, id); ok {
			steps = append(steps, s)
		}
	}
	return trace.New(id, accepted, steps, accepted.Add(time.Hour))
}

const lines = `time=2026-11-22T10:00:00.100Z level=INFO msg=accepted program=smtpserver id=S9978195A28Cb3lTyDjf from=bob@mta.example size=269 rcpts=2 client=127.0.0.1:37928
time=2026-11-22T10:00:00.130Z level=INFO msg=routed program=router id=S9978195A28Cb3lTyDjf name=9978195-19115 from=bob@mta.example rcpts=2 size=269 took=20ms
time=2026-11-22T10:00:01.000Z level=INFO msg=deferred program=scheduler id=S9978195A28Cb3lTyDjf rcpt=ann@far.example channel=smtp host=far.example status=4.7.1 reply="451 later" attempt=1 routing=40ms queue=300ms delivery=500ms took=900ms next=2026-11-22T10:01:00Z
time=2026-11-22T10:00:01.000Z level=INFO msg=delivered program=scheduler id=S9978195A28Cb3lTyDjf rcpt=eve@far.example channel=smtp host=far.example status=2.0.0 reply="250 ok" attempt=1 routing=40ms queue=300ms delivery=500ms took=900ms
time=2026-11-22T10:00:30.000Z level=INFO msg=held program=scheduler id=S9978195A28Cb3lTyDjf rcpt=ann@far.example channel=smtp host=far.example who=root reason=why
time=2026-11-22T10:01:00.000Z level=INFO msg=failed program=scheduler id=S9978195A28Cb3lTyDjf rcpt=ann@far.example channel=smtp host=far.example status=5.1.1 reply="550 no such user" attempt=2 routing=0s queue=1ms delivery=2ms took=59.9s
time=2026-11-22T10:01:00.010Z level=INFO msg=report program=scheduler id=S9978195A28Cb3lTyDjf kind=failed rcpt=bob@mta.example recipients=1 report=S9977888A28Cb3rHWANz
`

// decode reads a request as a collector does: by the types that opentelemetry-proto
// makes. A request is a TracesData; of identifiers protobuf's own JSON knows base64 alone,
// so that their text is what is got back of the bytes.
func decode(t *testing.T, b []byte) *tracepb.ResourceSpans {
	t.Helper()
	var got tracepb.TracesData
	if err := protojson.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	if len(got.ResourceSpans) != 1 || len(got.ResourceSpans[0].ScopeSpans) != 1 {
		t.Fatalf("got %v", &got)
	}
	return got.ResourceSpans[0]
}

func hexOf(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// attr returns an attribute as text.
func attr(list []*commonpb.KeyValue, key string) string {
	for _, a := range list {
		if a.Key == key {
			return strings.Trim(strings.TrimPrefix(strings.TrimPrefix(a.Value.String(), "string_value:"), "int_value:"), `"`)
		}
	}
	return ""
}

// Z30: OpenTelemetry's own types read what is sent: a trace of the message, with a span
// for each stage and attempt that began and ended when they did.
func TestLifeIsATraceForOpenTelemetry(t *testing.T) {
	accepted := time.Date(2026, 11, 22, 10, 0, 0, 100e6, time.UTC)
	b, err := Request([]*trace.Life{life(t, spoolID, accepted, lines), life(t, reportID, accepted, lines)}, Options{Host: "mta.example", Version: "1.0", Addresses: true})
	assert.Must(t, err)
	got := decode(t, b)
	if name, host := attr(got.Resource.Attributes, "service.name"), attr(got.Resource.Attributes, "host.name"); name != "zmailer" || host != "mta.example" {
		t.Errorf("resource: %q on %q", name, host)
	}
	type want struct {
		name       string
		kind       tracepb.Span_SpanKind
		start, end time.Duration // after the acceptance
		failed     bool
		of, key    string
	}
	wants := []want{
		{"message", tracepb.Span_SPAN_KIND_INTERNAL, 0, 59910 * time.Millisecond, true, "269", "messaging.message.envelope.size"},
		{"receive", tracepb.Span_SPAN_KIND_SERVER, 0, 0, false, "receive", "messaging.operation.type"},
		{"route", tracepb.Span_SPAN_KIND_INTERNAL, 10 * time.Millisecond, 30 * time.Millisecond, false, "process", "messaging.operation.type"},
		{"queue smtp", tracepb.Span_SPAN_KIND_INTERNAL, 100 * time.Millisecond, 400 * time.Millisecond, false, "1", "zmailer.attempt"},
		{"deliver smtp", tracepb.Span_SPAN_KIND_CLIENT, 400 * time.Millisecond, 900 * time.Millisecond, true, "4.7.1", "error.type"},
		{"queue smtp", tracepb.Span_SPAN_KIND_INTERNAL, 100 * time.Millisecond, 400 * time.Millisecond, false, "far.example", "server.address"},
		{"deliver smtp", tracepb.Span_SPAN_KIND_CLIENT, 400 * time.Millisecond, 900 * time.Millisecond, false, "delivered", "zmailer.outcome"},
		{"queue smtp", tracepb.Span_SPAN_KIND_INTERNAL, 59897 * time.Millisecond, 59898 * time.Millisecond, false, "2", "zmailer.attempt"},
		{"deliver smtp", tracepb.Span_SPAN_KIND_CLIENT, 59898 * time.Millisecond, 59900 * time.Millisecond, true, "5.1.1", "zmailer.status"},
	}
	spans := got.ScopeSpans[0].Spans
	if len(spans) != len(wants)+1 {
		t.Fatalf("got %d spans: %v", len(spans), spans)
	}
	seen := map[string]bool{}
	for i, w := range wants {
		x := spans[i]
		start, end := time.Unix(0, int64(x.StartTimeUnixNano)).Sub(accepted), time.Unix(0, int64(x.EndTimeUnixNano)).Sub(accepted)
		failed := x.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR
		if x.Name != w.name || x.Kind != w.kind || start != w.start || end != w.end || failed != w.failed || attr(x.Attributes, w.key) != w.of {
			t.Errorf("span %d: got %s, %s, %v to %v, %s=%q, failed %v; want %+v", i, x.Name, x.Kind, start, end, w.key, attr(x.Attributes, w.key), failed, w)
		}
		if hexOf(x.TraceId) != TraceID(spoolID) || attr(x.Attributes, "messaging.message.id") != spoolID || len(hexOf(x.SpanId)) != 16 || seen[hexOf(x.SpanId)] {
			t.Errorf("span %d: trace %s, span %s", i, hexOf(x.TraceId), hexOf(x.SpanId))
		}
		if seen[hexOf(x.SpanId)] = true; i > 0 && hexOf(x.ParentSpanId) != hexOf(spans[0].SpanId) {
			t.Errorf("span %d is not in the first", i)
		}
	}
	root, report := spans[0], spans[len(spans)-1]
	if len(root.Events) != 2 || root.Events[0].Name != "held" || attr(root.Events[0].Attributes, "zmailer.who") != "root" || root.Events[1].Name != "report" {
		t.Errorf("events: %v", root.Events)
	}
	if len(root.Links) != 1 || hexOf(root.Links[0].TraceId) != TraceID(reportID) || hexOf(root.Links[0].SpanId) != hexOf(report.SpanId) {
		t.Errorf("the message has no link to its report: %v", root.Links)
	}
	if len(report.Links) != 1 || hexOf(report.Links[0].SpanId) != hexOf(root.SpanId) || hexOf(report.TraceId) != TraceID(reportID) {
		t.Errorf("the report has no link to its message: %v", report)
	}
}

// Without addresses neither these are sent nor what a host answered, which may quote them.
func TestTraceWithoutAddressesHasNone(t *testing.T) {
	b, err := Request([]*trace.Life{life(t, spoolID, time.Unix(1, 0), lines)}, Options{})
	assert.Must(t, err)
	decode(t, b)
	for _, word := range []string{"ann@", "eve@", "bob@", "no such user", "451 later"} {
		if strings.Contains(string(b), word) {
			t.Errorf("%s is in %s", word, b)
		}
	}
}

// Each delivery has its own times, also those within one second.
func TestDeliveriesOfOneSecondKeepTheirTimes(t *testing.T) {
	const line = "time=2026-11-22T10:00:01.%s level=INFO msg=delivered program=scheduler id=" + spoolID + " rcpt=%s@far.example channel=smtp host=far.example status=2.0.0 reply=ok attempt=1 queue=%s delivery=%s\n"
	text := fmt.Sprintf(line, "100Z", "ann", "1ms", "90ms") + fmt.Sprintf(line, "100005436Z", "bea", "1ms", "90ms") +
		fmt.Sprintf(line, "101Z", "cas", "51ms", "41ms") + fmt.Sprintf(line, "900Z", "dan", "51ms", "40ms")
	at := time.Date(2026, 11, 22, 10, 0, 1, 0, time.UTC)
	b, err := Request([]*trace.Life{life(t, spoolID, at, text)}, Options{})
	assert.Must(t, err)
	var got []string
	for _, x := range decode(t, b).ScopeSpans[0].Spans[1:] {
		start, end := time.Unix(0, int64(x.StartTimeUnixNano)).Sub(at), time.Unix(0, int64(x.EndTimeUnixNano)).Sub(at)
		got = append(got, fmt.Sprint(x.Name, " ", start, "-", end, " ", attr(x.Attributes, "zmailer.recipients")))
	}
	want := []string{"queue smtp 9ms-10ms 2", "deliver smtp 10ms-100ms 2", "queue smtp 9ms-60ms 1", "deliver smtp 60ms-101ms 1", "queue smtp 809ms-860ms 1", "deliver smtp 860ms-900ms 1"}
	assert.Same(t, got, want)
}

// An identifier is no way to try addresses: it is the same whoever the recipient is, and
// still each has its own.
func TestIdentifiersDoNotDependOnAddresses(t *testing.T) {
	identifiers := func(o Options, text string) (list []string) {
		b, err := Request([]*trace.Life{life(t, spoolID, time.Unix(1, 0), text)}, o)
		assert.Must(t, err)
		for _, x := range decode(t, b).ScopeSpans[0].Spans {
			list = append(list, hexOf(x.SpanId))
		}
		return list
	}
	text := lines + strings.ReplaceAll(lines, "channel=smtp host=far.example", "channel=local host=eve")
	got := identifiers(Options{}, text)
	others := strings.NewReplacer("ann@", "pat@", "eve@", "sue@", "host=eve", "host=sue").Replace(text)
	for what, list := range map[string][]string{"other recipients": identifiers(Options{}, others), "with addresses": identifiers(Options{Addresses: true}, text)} {
		assert.Same(t, got, list, "%s: the identifiers", what)
	}
	slices.Sort(got)
	if all := len(got); len(slices.Compact(got)) != all {
		t.Errorf("two spans have one identifier: %q", got)
	}
}

// Attributes are what the semantic conventions say: an address without its port, and an
// error that has a type.
func TestAttributesAreThoseOfTheConventions(t *testing.T) {
	const line = "time=2026-11-22T10:00:01.000Z level=INFO msg=deferred program=scheduler id=" + spoolID + " rcpt=ann@far.example channel=%s host=%s attempt=1 delivery=5ms\n"
	for host, want := range map[string]string{
		"smtp far.example":            "far.example  _OTHER smtp/far.example",
		"smtp far.example:2525":       "far.example 2525 _OTHER smtp/far.example:2525",
		"smtp [127.0.0.1]:2626":       "127.0.0.1 2626 _OTHER smtp/[127.0.0.1]:2626",
		"smtp [IPv6:::1]":             "::1  _OTHER smtp/[IPv6:::1]",
		"smtp ::1":                    "::1  _OTHER smtp/::1",
		"lmtp unix:/run/dovecot/lmtp": "unix:/run/dovecot/lmtp  _OTHER lmtp/unix:/run/dovecot/lmtp",
		"local ann":                   "  _OTHER local/ann",
	} {
		channel, name, _ := strings.Cut(host, " ")
		b, err := Request([]*trace.Life{life(t, spoolID, time.Unix(1, 0), fmt.Sprintf(line, channel, name))}, Options{Addresses: true})
		assert.Must(t, err)
		spans := decode(t, b).ScopeSpans[0].Spans
		var got []string
		for _, key := range []string{"server.address", "server.port", "error.type", "messaging.destination.name"} {
			got = append(got, attr(spans[len(spans)-1].Attributes, key))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
		if strings.Contains(string(b), "messaging.batch.") {
			t.Errorf("%s: recipients are no batch of messages: %s", host, b)
		}
	}
}

// However much a life has, a request has an end, and says what was left out.
func TestLongLifeIsCut(t *testing.T) {
	var text strings.Builder
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for i := range 3 * mostSpans {
		at = at.Add(time.Minute)
		text.WriteString("time=" + at.Format(time.RFC3339) + " level=INFO msg=deferred program=scheduler id=" + spoolID +
			" rcpt=ann@far.example channel=smtp host=far.example status=4.7.1 reply=later attempt=" + strings.Repeat("1", i%9+1) + " delivery=5ms\n")
	}
	b, err := Request([]*trace.Life{life(t, spoolID, at, text.String())}, Options{})
	assert.Must(t, err)
	spans := decode(t, b).ScopeSpans[0].Spans
	if len(spans) != mostSpans+1 || attr(spans[0].Attributes, "zmailer.left_out") != "2000" {
		t.Errorf("got %d spans, %v", len(spans), spans[0])
	}
}
