package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// BenchmarkRouteByCompiledAliases routes one message to an alias of a compiled table: what
// it costs is to be the same whether the table has ten entries or a million.
func BenchmarkRouteByCompiledAliases(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n, "-aliases"), func(b *testing.B) {
			dir := b.TempDir()
			in, out := filepath.Join(dir, "aliases"), filepath.Join(dir, "aliases.db")
			var aliases strings.Builder
			for i := range n {
				fmt.Fprintf(&aliases, "user%d: u%d@x.example.net\n", i, i)
			}
			if err := os.WriteFile(in, []byte(aliases.String()), 0o644); err != nil {
				b.Fatal(err)
			}
			if _, err := table.Compile(text.Aliases, in, out, func(string, int64, int64) {}); err != nil {
				b.Fatal(err)
			}
			o := newOffice(b, nil, func(c *Config) {
				c.Log = nil
				c.Rules.Sources = map[text.Kind][]string{text.Aliases: {"db:" + out}}
			})
			a := o.submit(fmt.Sprintf("external\nfrom <q@example.net>\nto <user%d@example.org>\nenv-end\nSubject: x\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nMessage-ID: <1@x>\nFrom: q@example.net\n\nbody\n", n/2))
			ino := fmt.Sprint(a.ID.Ino)
			name := ino + "-" + fmt.Sprint(o.r.owner.Number())
			b.ReportAllocs()
			for b.Loop() {
				if err := o.r.RouteOne(ino); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				spec, err := os.ReadFile(filepath.Join(o.dir, "transport", name))
				if err != nil || !strings.Contains(string(spec), rules.SMTP+" x.example.net ") {
					b.Fatalf("%v\n%s", err, spec)
				}
				if err := os.Rename(filepath.Join(o.dir, "queue", name), filepath.Join(o.dir, a.Name)); err != nil {
					b.Fatal(err)
				}
				if err := os.Remove(filepath.Join(o.dir, "transport", name)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
