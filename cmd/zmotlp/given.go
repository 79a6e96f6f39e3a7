package main

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// headers reads key=value,key=value with percent signs, as OpenTelemetry's SDKs do.
func headers(text string) (http.Header, error) {
	h := http.Header{}
	if text == "" {
		return h, nil
	}
	for _, part := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil || strings.ContainsAny(key+value, "\r\n") {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS: it must be like authorization=Bearer%20SECRET,x-tenant=mail")
		}
		h.Set(key, value)
	}
	return h, nil
}
