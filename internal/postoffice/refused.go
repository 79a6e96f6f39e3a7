package postoffice

import (
	"strings"
	"time"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice/alarm"
)

// ConfigAlarms returns the alarms about what programs use: tables and keys that cannot be used as they
// are now, servers that give no answer, and certificates that end soon.
func (p *PostOffice) ConfigAlarms(now time.Time) (list []alarm.Alarm) {
	for _, f := range lastgood.Findings(p.fs, now) {
		a := alarm.Alarm{Kind: alarm.Refused, Subject: f.Path, Since: f.Since}
		switch {
		case f.Reason == "":
			a.Kind, a.Text = alarm.Certificate, "the certificate ends at "+f.Until.UTC().Format(time.RFC3339)+"; renew it"
		case f.Away:
			a.Text = f.Program + " gets no usable answer: " + strings.ReplaceAll(f.Reason, "\n", "; ")
			if f.Remedy != "" {
				a.Text += "; " + f.Remedy
			}
		case f.Held:
			a.Text = f.Program + " uses the content that it had before: " + strings.ReplaceAll(f.Reason, "\n", "; ")
		default:
			a.Text = f.Program + " cannot use it: " + strings.ReplaceAll(f.Reason, "\n", "; ")
		}
		list = append(list, a)
	}
	return list
}
