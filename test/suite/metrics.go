package suite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Sample is the value of one label set; of a histogram Value is the number of what was
// counted, and Buckets are cumulative.
type Sample struct {
	Labels     map[string]string
	Value, Sum float64
	Buckets    []uint64
}

// Family is a metric.
type Family struct {
	Kind, Help string
	Samples    []Sample
}

// Metrics are families by name.
type Metrics map[string]Family

// ParseMetrics reads a program's metrics as Prometheus does.
func ParseMetrics(text []byte) (Metrics, error) {
	p := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	all := Metrics{}
	for name, f := range parsed {
		family := Family{Kind: f.GetType().String(), Help: f.GetHelp()}
		for _, m := range f.Metric {
			s := Sample{Labels: map[string]string{}, Value: m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()}
			for _, l := range m.Label {
				s.Labels[l.GetName()] = l.GetValue()
			}
			if h := m.Histogram; h != nil {
				s.Value, s.Sum = float64(h.GetSampleCount()), h.GetSampleSum()
				for _, b := range h.Bucket {
					s.Buckets = append(s.Buckets, b.GetCumulativeCount())
				}
			}
			family.Samples = append(family.Samples, s)
		}
		all[name] = family
	}
	return all, nil
}

// Sum returns the sum of a family's values whose labels have the values; labels and values
// stand in turn.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for _, s := range m[name].Samples {
		fits := true
		for i := 0; i+1 < len(labels); i += 2 {
			fits = fits && s.Labels[labels[i]] == labels[i+1]
		}
		if fits {
			sum += s.Value
		}
	}
	return sum
}

// ReadMetrics returns the metrics of a program of the system from its socket, as text.
func (s *Suite) ReadMetrics(program string) ([]byte, error) {
	path := filepath.Join(s.PostOffice(), ".metrics."+program)
	return readMetrics("http://"+program+"/metrics", func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
}

// ReadMetricsAt returns the metrics that are served at host:port.
func ReadMetricsAt(addr string) ([]byte, error) {
	return readMetrics("http://"+addr+"/metrics", (&net.Dialer{}).DialContext)
}

func readMetrics(url string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (text []byte, err error) {
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return text, err
}

// Metrics reads and parses the metrics of a program of the system from its socket.
func (s *Suite) Metrics(program string) (Metrics, error) {
	text, err := s.ReadMetrics(program)
	if err != nil {
		return nil, err
	}
	return ParseMetrics(text)
}
