package config

import "testing"

func TestMetricsAreReadOnThisMachineAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		text, router, scheduler string
		wrong                   bool
	}{
		"off":                    {text: "off"},
		"not set":                {text: ""},
		"all":                    {text: "unix", router: "unix", scheduler: "unix"},
		"one":                    {text: "router=127.0.0.1:9126", router: "127.0.0.1:9126"},
		"each its own":           {text: "router=[::1]:9126, scheduler=unix", router: "[::1]:9126", scheduler: "unix"},
		"by name":                {text: "router=localhost:9126", router: "localhost:9126"},
		"another network":        {text: "router=192.0.2.1:9126", wrong: true},
		"every network":          {text: "router=:9126", wrong: true},
		"0.0.0.0":                {text: "router=0.0.0.0:9126", wrong: true},
		"a name of anybody's":    {text: "router=mail.example:9126", wrong: true},
		"no port":                {text: "router=127.0.0.1", wrong: true},
		"an agent":               {text: "ta-smtp=unix", wrong: true},
		"nobody":                 {text: "127.0.0.1:9126", wrong: true},
		"twice":                  {text: "router=unix router=127.0.0.1:9126", wrong: true},
		"off and something":      {text: "off router=unix", wrong: true},
		"all, and one once more": {text: "unix router=unix", wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkMetrics(tt.text); (err != nil) != tt.wrong {
				t.Fatalf("checked: %v", err)
			}
			if tt.wrong {
				return
			}
			c := &Config{values: map[string]value{"METRICS": {text: tt.text}}}
			for program, want := range map[string]string{"router": tt.router, "scheduler": tt.scheduler} {
				if got, err := c.Metrics(program); err != nil || got != want {
					t.Errorf("%s: got %q, %v, want %q", program, got, err, want)
				}
			}
		})
	}
}
