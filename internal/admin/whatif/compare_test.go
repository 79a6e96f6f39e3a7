package whatif

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
)

// parsePlace reads "channel!host user [uid] [from SENDER]".
func parsePlace(t *testing.T, text string) place {
	t.Helper()
	f := strings.Fields(text)
	channel, host, ok := strings.Cut(f[0], "!")
	if !ok || len(f) < 2 {
		t.Fatalf("%q is no place", text)
	}
	p := place{Channel: channel, Host: host, User: f[1], Privilege: nobodyUID, Sender: "s@x"}
	for _, word := range f[2:] {
		if sender, ok := strings.CutPrefix(word, "from="); ok {
			p.Sender = sender
		} else if _, err := fmt.Sscan(word, &p.Privilege); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// parseRouting reads "a@x: place; place" for each recipient of the envelope.
func parseRouting(t *testing.T, list []string) *route.Explanation {
	t.Helper()
	if list == nil {
		return nil
	}
	r := &route.Explanation{Verdict: route.VerdictRouted}
	for _, line := range list {
		if verdict, why, ok := strings.Cut(line, "/"); ok && (verdict == route.VerdictDeferred || verdict == route.VerdictFrozen) {
			return &route.Explanation{Verdict: verdict, Why: why, Reason: "because"}
		}
		addr, rest, _ := strings.Cut(line, ": ")
		to := &route.ExplainedRecipient{Address: addr, Verdict: route.VerdictRouted}
		for part := range strings.SplitSeq(rest, "; ") {
			if part != "" {
				to.Targets = append(to.Targets, parsePlace(t, part))
			}
		}
		r.Recipients = append(r.Recipients, to)
	}
	return r
}

// Each way in which a queued message may differ from what a configuration would do.
func TestDifferencesOfAMessage(t *testing.T) {
	tests := map[string]struct {
		spec      []string // "+": open; "-": done; "o": open, and not selected
		now, then []string
		want      []string
	}{
		"the same, a domain in another case": {
			[]string{"+ smtp!far u@far.example"}, []string{"u@far.example: smtp!far u@FAR.example"},
			[]string{"u@far.example: smtp!far u@FAR.example"}, nil,
		},
		"another host": {
			[]string{"+ smtp!a u@far.example", "+ smtp!a v@far.example"}, []string{"u@far.example: smtp!a u@far.example", "v@far.example: smtp!a v@far.example"},
			[]string{"u@far.example: smtp!b u@far.example", "v@far.example: smtp!a v@far.example"},
			[]string{"move u@far.example smtp!a → smtp!b"},
		},
		"another host, by the present one too": {
			[]string{"+ smtp!a u@far.example"}, []string{"u@far.example: smtp!b u@far.example"}, []string{"u@far.example: smtp!b u@far.example"},
			[]string{"move u@far.example smtp!a → smtp!b present"},
		},
		"the present one is not known": {
			[]string{"+ smtp!a u@far.example"}, nil, []string{"u@far.example: smtp!b u@far.example"},
			[]string{"move u@far.example smtp!a → smtp!b"},
		},
		"its own domain as host": {
			[]string{"+ smtp!xn--bcher-kva.example u@bücher.example"}, nil, []string{"u@bücher.example: smtp!b u@bücher.example"},
			[]string{"move u@bücher.example smtp! → smtp!b"},
		},
		"what is done does not count": {
			[]string{"- smtp!a u@far.example", "+ smtp!a v@far.example"}, nil,
			[]string{"u@far.example: smtp!b u@far.example", "v@far.example: smtp!b v@far.example"},
			[]string{"move v@far.example smtp!a → smtp!b"},
		},
		"it would fail": {
			[]string{"+ smtp!a u@far.example"}, nil, []string{"u@far.example: error!5.7.1:not+20wanted u@far.example"},
			[]string{"fail u@far.example smtp!a → error!5.7.1 (not wanted)"},
		},
		"what fails would go out": {
			[]string{"+ error!nouser u@far.example"}, nil, []string{"u@far.example: smtp!a u@far.example"},
			[]string{"work u@far.example error!nouser → smtp!a"},
		},
		"an alias leads to another": {
			[]string{"+ local!bob@mx bob@mx 7", "+ local!al@mx al@mx 8", "+ smtp!a u@far"}, []string{"sales@mx: local!bob@mx bob@mx 7; local!al@mx al@mx 8", "u@far: smtp!a u@far"},
			[]string{"sales@mx: local!carol@mx carol@mx 9; local!al@mx al@mx 8", "u@far: smtp!a u@far"},
			[]string{"expand bob@mx of sales@mx local! → local! (instead <carol@mx>)"},
		},
		"an alias that has delivered leads to another": {
			[]string{"- local!bob@mx bob@mx 7", "+ smtp!a u@far"}, []string{"sales@mx: local!bob@mx bob@mx 7", "u@far: smtp!a u@far"},
			[]string{"sales@mx: local!carol@mx carol@mx 9", "u@far: smtp!a u@far"}, nil,
		},
		"an alias told by ORCPT, with no present configuration": {
			[]string{"+ local!bob@mx bob@mx 7 orcpt=sales@mx", "+ smtp!a u@far"}, nil,
			[]string{"u@far: smtp!a u@far", "sales@mx: local!carol@mx carol@mx 9"},
			[]string{"expand bob@mx of sales@mx local! → local! (instead <carol@mx>)"},
		},
		"an alias leads to more": {
			[]string{"+ local!bob@mx bob@mx 7"}, nil, []string{"sales@mx: local!bob@mx bob@mx 7; smtp!a u@far"},
			[]string{"add u@far of sales@mx nobody → smtp!a"},
		},
		"an alias leads to less": {
			[]string{"+ local!bob@mx bob@mx 7", "+ smtp!a u@far"}, []string{"sales@mx: local!bob@mx bob@mx 7; smtp!a u@far"}, []string{"sales@mx: smtp!a u@far"},
			[]string{"drop bob@mx of sales@mx local! → nobody"},
		},
		"an alias leads to no user who exists": {
			[]string{"+ local!bob@mx bob@mx 7"}, nil, []string{"sales@mx: error!nouser carol@mx"},
			[]string{"fail bob@mx of sales@mx local! → error!nouser (instead <carol@mx>)"},
		},
		"another was selected": {
			[]string{"o local!bob@mx bob@mx 7", "+ smtp!a u@far"}, []string{"sales@mx: local!bob@mx bob@mx 7; smtp!a u@far"},
			[]string{"sales@mx: local!carol@mx carol@mx 9; smtp!b u@far"},
			[]string{"move u@far smtp!a → smtp!b"},
		},
		"a privilege": {
			[]string{"+ pipe!pipe.7 |x 7", "+ local!bob@mx bob@mx 7"}, nil, []string{"p@mx: pipe!pipe.7 |x 65534; local!bob@mx bob@mx 7"},
			[]string{"act |x pipe |x as uid 7 → pipe |x as nobody"},
		},
		"a list gets an owner": {
			[]string{"+ smtp!a u@far"}, nil, []string{"list@mx: smtp!a u@far from=owner-list@mx"},
			[]string{"report u@far smtp!a <s@x> → smtp!a <owner-list@mx>"},
		},
		"put off": {
			[]string{"+ smtp!a u@far", "- smtp!a v@far"}, []string{"u@far: smtp!a u@far"}, []string{"deferred/users"},
			[]string{"defer u@far smtp!a → deferred (users) (because)"},
		},
		"put off by the present one too": {
			[]string{"+ smtp!a u@far"}, []string{"deferred/users"}, []string{"deferred/users"},
			[]string{"defer u@far smtp!a → deferred (users) (because) present"},
		},
		"frozen": {
			[]string{"+ smtp!a u@far"}, nil, []string{"frozen/flood"},
			[]string{"freeze u@far smtp!a → frozen (flood) (because)"},
		},
		"notices do not count": {
			[]string{"+ bitbucket!expanded sales@mx", "+ local!bob@mx bob@mx 7"}, nil, []string{"sales@mx: local!bob@mx bob@mx 7; bitbucket!list sales@mx"}, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var spec []queued
			for _, line := range tt.spec {
				text, orcpt, _ := strings.Cut(line[2:], " orcpt=")
				spec = append(spec, queued{place: parsePlace(t, text), open: line[0] != '-', asked: line[0] == '+', orcpt: orcpt})
			}
			var got []string
			for _, d := range compare(spec, parseRouting(t, tt.now), parseRouting(t, tt.then)) {
				text := d.kind + " " + d.address
				if d.of != "" && d.of != d.address {
					text += " of " + d.of
				}
				text += " " + d.from + " → " + d.to
				if d.detail != "" {
					text += " (" + d.detail + ")"
				}
				if d.present {
					text += " present"
				}
				got = append(got, text)
			}
			slices.Sort(got)
			assert.Same(t, tt.want, got)
		})
	}
}

// However many differences there are, what is held of them is bounded, and they are all
// counted.
func TestDifferencesAreHeldInGroups(t *testing.T) {
	s := newComparison()
	const many = 3 * maxGroups
	for i := range many {
		s.add(fmt.Sprint("S", i), "", 2, []difference{
			{kind: Move, address: fmt.Sprintf("u@d%d.example", i), from: fmt.Sprintf("smtp!h%d", i), to: "smtp!b"},
			{kind: Move, address: fmt.Sprintf("v@d%d.example", i), from: "smtp!", to: "smtp!b"},
		})
	}
	s.settle(nil)
	n, domains := 0, 0
	for _, g := range s.Groups {
		n += g.Recipients
		domains = max(domains, len(g.Domains))
		sum := g.More
		for _, d := range g.Domains {
			sum += d.Recipients
		}
		if sum != g.Recipients || len(g.Examples) > maxGroupExamples {
			t.Errorf("%s → %s: %d recipients, their domains have %d, %d examples", g.From, g.To, g.Recipients, sum, len(g.Examples))
		}
	}
	if n != 2*many || s.Differ != n || s.Messages != many || s.Same != 0 {
		t.Errorf("got %d recipients in groups, %+v", n, s)
	}
	if len(s.Groups) > maxGroups+1 || domains > maxGroupDomains {
		t.Errorf("%d groups, one with %d domains", len(s.Groups), domains)
	}
}
