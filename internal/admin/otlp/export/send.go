package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"zmailer/internal/run/backoff"
)

// sendHeld sends what waits, the oldest first, and has retry run if something is left.
func (e *Exporter) sendHeld(ctx context.Context, retry *time.Timer) {
	for len(e.held) > 0 {
		err := e.post(ctx, e.held[0])
		if err != nil && ctx.Err() != nil {
			return // that is no answer; last logs the rest
		}
		if err != nil && !e.failing {
			e.failing = true
			e.Log.Warn("export-trouble", "endpoint", e.Endpoint, "reason", err)
		}
		var b busy
		if errors.As(err, &b) {
			e.wait = backoff.Next(e.wait, firstWait, lastWait)
			if retry != nil {
				retry.Reset(max(e.wait, b.least))
			}
			return
		}
		e.wait = 0
		if e.held = e.held[1:]; err != nil {
			e.dropped++
			continue
		}
		if e.failing || e.dropped > 0 {
			e.Log.Info("export-recovered", "endpoint", e.Endpoint, "dropped", e.dropped)
			e.failing, e.dropped = false, 0
		}
	}
}

// busy means that a request may be accepted later (OTLP/HTTP, "Retryable Response
// Codes").
type busy struct {
	error
	least time.Duration // until then it should not be asked
}

func (b busy) Unwrap() error { return b.error }

// post sends a request.
func (e *Exporter) post(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.Endpoint, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send a trace: %w", err)
	}
	r.Header = e.Header.Clone()
	r.Header.Set("Content-Type", "application/json")
	answer, err := e.Client.Do(r)
	if err != nil {
		return busy{error: fmt.Errorf("send a trace: %w", err)}
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10)) // what cannot be read of it is not needed
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return busy{fmt.Errorf("send a trace: %s answered %s", e.Endpoint, answer.Status), leastWait(answer.Header)}
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("send a trace: %s answered %s: %.200s", e.Endpoint, answer.Status, text)
	}
	var partial struct {
		PartialSuccess struct {
			RejectedSpans json.Number `json:"rejectedSpans"`
			ErrorMessage  string      `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(text, &partial) == nil && partial.PartialSuccess.RejectedSpans != "" && partial.PartialSuccess.RejectedSpans != "0" {
		return fmt.Errorf("send a trace: %s refused %s spans: %.200s", e.Endpoint, partial.PartialSuccess.RejectedSpans, partial.PartialSuccess.ErrorMessage)
	}
	return nil
}

// leastWait returns what a collector wants: seconds, or a date (RFC 9110 §10.2.3).
func leastWait(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	wait := time.Duration(0)
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		wait = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		wait = time.Until(at)
	}
	return min(max(wait, 0), mostWait)
}
