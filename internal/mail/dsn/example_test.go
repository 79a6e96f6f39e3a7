package dsn_test

import (
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"time"

	"zmailer/internal/mail/dsn"
)

// A message could not be delivered: its sender gets a report, of which programs read the
// second part.
func Example() {
	var report strings.Builder
	err := dsn.Write(&report, &dsn.Report{
		ReportingMTA: "mx.example.org", From: "MAILER-DAEMON@mx.example.org", To: "ann@example.org",
		MessageID: "<1@mx.example.org>", Date: time.Date(2026, 11, 26, 5, 0, 0, 0, time.UTC),
		Recipients: []dsn.Recipient{{Final: "bob@example.net", Action: dsn.Failed, Status: "5.1.1",
			Remote: "dns; mx.example.net", Diagnostic: "smtp; 550 5.1.1 no such user"}},
		Original: strings.NewReader("Subject: lunch\n\nAt noon?\n"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	m, _ := mail.ReadMessage(strings.NewReader(report.String()))
	kind, params, _ := mime.ParseMediaType(m.Header.Get("Content-Type"))
	fmt.Println(kind, params["report-type"])
	for parts := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := parts.NextPart()
		if err != nil {
			break
		}
		if p.Header.Get("Content-Type") == "message/delivery-status" {
			b, _ := io.ReadAll(p)
			fmt.Println(strings.TrimSpace(string(b)))
		}
	}
	// Output:
	// multipart/report delivery-status
	// Reporting-MTA: dns; mx.example.org
	//
	// Final-Recipient: rfc822; bob@example.net
	// Action: failed
	// Status: 5.1.1
	// Remote-MTA: dns; mx.example.net
	// Diagnostic-Code: smtp; 550 5.1.1 no such user
}
