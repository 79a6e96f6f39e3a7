package metrics

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// The text form of Prometheus, version 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats/

// Append appends the text of all numbers as they are now.
func (s *Set) Append(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		b = f.append(b)
	}
	return b
}

func (c *Counters) append(b []byte) []byte {
	b = appendHead(b, c.v.name, c.v.help, "counter")
	for _, l := range c.v.all() {
		b = appendSample(b, c.v.name, "", c.v.labels, l.values, "", float64(l.of.n.Load()))
	}
	return b
}

func (h *Histograms) append(b []byte) []byte {
	b = appendHead(b, h.v.name, h.v.help, "histogram")
	for _, l := range h.v.all() {
		n, sum := uint64(0), l.of.sum.Load()
		for i := range l.of.buckets {
			n += l.of.buckets[i].Load()
			bound := math.Inf(1)
			if i < len(l.of.bounds) {
				bound = l.of.bounds[i]
			}
			b = appendSample(b, h.v.name, "_bucket", h.v.labels, l.values, number(bound), float64(n))
		}
		b = appendSample(b, h.v.name, "_sum", h.v.labels, l.values, "", float64(sum)/1e9)
		b = appendSample(b, h.v.name, "_count", h.v.labels, l.values, "", float64(n))
	}
	return b
}

func (a *asked) append(b []byte) []byte {
	if now := time.Now(); a.at.IsZero() || now.Sub(a.at) >= a.keep {
		for _, v := range a.families {
			clear(v.by)
			v.sets = v.sets[:0]
		}
		a.look(a.put)
		a.at = now
	}
	for _, v := range a.families {
		kind := "gauge"
		if strings.HasSuffix(v.name, "_total") {
			kind = "counter"
		}
		b = appendHead(b, v.name, v.help, kind)
		for _, l := range v.all() {
			b = appendSample(b, v.name, "", v.labels, l.values, "", *l.of)
		}
	}
	return b
}

func appendHead(b []byte, name, help, kind string) []byte {
	b = append(append(append(b, "# HELP "...), name...), ' ')
	b = append(append(b, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help)...), '\n')
	b = append(append(append(b, "# TYPE "...), name...), ' ')
	return append(append(b, kind...), '\n')
}

// appendSample appends a line; le is the bound of a bucket, "" of anything else.
func appendSample(b []byte, name, suffix string, labels, values []string, le string, n float64) []byte {
	b = append(append(b, name...), suffix...)
	if len(labels) > 0 || le != "" {
		b = append(b, '{')
		for i, label := range labels {
			b = append(append(b, label...), `="`...)
			b = append(append(b, escape(values[i])...), `",`...)
		}
		if le != "" {
			b = append(append(append(b, `le="`...), le...), `",`...)
		}
		b[len(b)-1] = '}' // in the place of the last comma
	}
	return append(append(append(b, ' '), number(n)...), '\n')
}

// escape writes a label's value.
func escape(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if !strings.ContainsAny(s, "\\\"\n") {
		return s
	}
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}

func number(n float64) string {
	if math.IsInf(n, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}
