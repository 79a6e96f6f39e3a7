package address

import (
	"strings"
	"testing"
	"zmailer/internal/run/assert"
)

// Sources of the cases: 5321 = RFC 5321 text, examples and grammar; 821 = RFC 821
// appendix; 3696 = RFC 3696 §3 and its errata 1690; 6531 = RFC 6531; 5890 = RFC
// 5890/5891; isemail = Dominic Sayers' is_email test set; seen = met in mail.
func TestAddressesAreReadAsTheRFCsSay(t *testing.T) {
	long := strings.Repeat("x", 63)
	cases := map[string]struct {
		in     string
		want   Mailbox
		prints string // "": as in
	}{
		"5321 §2.3.11 plain":                {in: "Smith@example.org", want: Mailbox{"Smith", "example.org"}},
		"5321 §3.3 in brackets":             {in: "<Smith@bar.com>", want: Mailbox{"Smith", "bar.com"}, prints: "Smith@bar.com"},
		"5321 §4.5.5 null sender":           {in: "<>", want: Mailbox{}},
		"formats: empty is null":            {in: "", want: Mailbox{}},
		"blanks around null":                {in: "  <>\t", want: Mailbox{}},
		"5321 §4.5.1 bare postmaster":       {in: "<Postmaster>", want: Mailbox{"Postmaster", ""}, prints: "Postmaster"},
		"formats: bare local name":          {in: "bond", want: Mailbox{"bond", ""}},
		"blanks around":                     {in: " bond@example.org ", want: Mailbox{"bond", "example.org"}, prints: "bond@example.org"},
		"5321 §2.4 case is kept":            {in: "SmItH@ExAmPlE.Org", want: Mailbox{"SmItH", "ExAmPlE.Org"}},
		"5321 dot-string":                   {in: "first.last@example.org", want: Mailbox{"first.last", "example.org"}},
		"3696 plus":                         {in: "user+mailbox@example.com", want: Mailbox{"user+mailbox", "example.com"}},
		"3696 slash and equals":             {in: "customer/department=shipping@example.com", want: Mailbox{"customer/department=shipping", "example.com"}},
		"3696 dollar":                       {in: "$A12345@example.com", want: Mailbox{"$A12345", "example.com"}},
		"3696 bang and percent":             {in: "!def!xyz%abc@example.com", want: Mailbox{"!def!xyz%abc", "example.com"}},
		"3696 underscore":                   {in: "_somename@example.com", want: Mailbox{"_somename", "example.com"}},
		"3696 quoted at":                    {in: `"Abc@def"@example.com`, want: Mailbox{"Abc@def", "example.com"}},
		"3696 quoted blank":                 {in: `"Fred Bloggs"@example.com`, want: Mailbox{"Fred Bloggs", "example.com"}},
		"3696 erratum 1690 backslash":       {in: `"Joe.\\Blow"@example.com`, want: Mailbox{`Joe.\Blow`, "example.com"}},
		"3696 erratum 1690 quoted pair at":  {in: `"Abc\@def"@example.com`, want: Mailbox{"Abc@def", "example.com"}, prints: `"Abc@def"@example.com`},
		"3696 erratum 1690 quoted pair":     {in: `"Fred\ Bloggs"@example.com`, want: Mailbox{"Fred Bloggs", "example.com"}, prints: `"Fred Bloggs"@example.com`},
		"5321 needless quotes go":           {in: `"simple"@example.org`, want: Mailbox{"simple", "example.org"}, prints: "simple@example.org"},
		"5321 quoted quote":                 {in: `"a\"b"@example.org`, want: Mailbox{`a"b`, "example.org"}},
		"5321 quoted brackets":              {in: `"<>[]:;,()"@example.org`, want: Mailbox{"<>[]:;,()", "example.org"}},
		"5321 empty quoted string":          {in: `""@example.org`, want: Mailbox{"", "example.org"}},
		"5321 quoted blanks at the ends":    {in: `"  a  "@example.org`, want: Mailbox{"  a  ", "example.org"}},
		"quoted name without domain":        {in: `"|/bin/prog arg"`, want: Mailbox{"|/bin/prog arg", ""}},
		"seen: file name":                   {in: "/var/spool/archive", want: Mailbox{"/var/spool/archive", ""}},
		"isemail all atext":                 {in: "!#$%&'*+/=?^_`{|}~-@example.org", want: Mailbox{"!#$%&'*+/=?^_`{|}~-", "example.org"}},
		"isemail digits only":               {in: "1234567890@example.org", want: Mailbox{"1234567890", "example.org"}},
		"isemail one-letter labels":         {in: "a@b.c", want: Mailbox{"a", "b.c"}},
		"isemail host without dot":          {in: "a@localhost", want: Mailbox{"a", "localhost"}},
		"seen: final dot of the domain":     {in: "a@example.org.", want: Mailbox{"a", "example.org"}, prints: "a@example.org"},
		"seen: two dots (docomo)":           {in: "a..b@docomo.ne.jp", want: Mailbox{"a..b", "docomo.ne.jp"}, prints: `"a..b"@docomo.ne.jp`},
		"seen: dot last (docomo)":           {in: "a.@docomo.ne.jp", want: Mailbox{"a.", "docomo.ne.jp"}, prints: `"a."@docomo.ne.jp`},
		"seen: dot first":                   {in: ".a@example.org", want: Mailbox{".a", "example.org"}, prints: `".a"@example.org`},
		"seen: bounce address (VERP)":       {in: "list-bounce+user=example.com@lists.example.org", want: Mailbox{"list-bounce+user=example.com", "lists.example.org"}},
		"seen: SRS":                         {in: "SRS0=HHH=TT=example.com=alice@fwd.example.org", want: Mailbox{"SRS0=HHH=TT=example.com=alice", "fwd.example.org"}},
		"seen: underscore in a label":       {in: "a@my_host.example.org", want: Mailbox{"a", "my_host.example.org"}},
		"seen: bang path":                   {in: "host!user", want: Mailbox{"host!user", ""}},
		"seen: local part over 64":          {in: strings.Repeat("x", 100) + "@example.org", want: Mailbox{strings.Repeat("x", 100), "example.org"}},
		"5321 numeric labels":               {in: "a@1.2.3.4", want: Mailbox{"a", "1.2.3.4"}},
		"1035 label of 63":                  {in: "a@" + long + ".org", want: Mailbox{"a", long + ".org"}},
		"5321 §4.1.3 IPv4 literal":          {in: "a@[192.0.2.1]", want: Mailbox{"a", "[192.0.2.1]"}},
		"5321 §4.1.3 IPv6 literal":          {in: "a@[IPv6:2001:db8::1]", want: Mailbox{"a", "[IPv6:2001:db8::1]"}},
		"5321 §4.1.3 IPv6 with IPv4 tail":   {in: "a@[IPv6:::ffff:192.0.2.1]", want: Mailbox{"a", "[IPv6:::ffff:192.0.2.1]"}},
		"5321 §4.1.3 general literal":       {in: "a@[x400:c=us;a=b]", want: Mailbox{"a", "[x400:c=us;a=b]"}},
		"821 source route, one hop":         {in: "<@hosta.int:JOE@D.ARPA>", want: Mailbox{"JOE", "D.ARPA"}, prints: "JOE@D.ARPA"},
		"5321 app. C source route":          {in: "<@hosta.int,@jkl.org:userc@d.bar.org>", want: Mailbox{"userc", "d.bar.org"}, prints: "userc@d.bar.org"},
		"source route without brackets":     {in: "@a.org:b@c.org", want: Mailbox{"b", "c.org"}, prints: "b@c.org"},
		"source route over a literal":       {in: "<@[IPv6:2001:db8::1]:b@c.org>", want: Mailbox{"b", "c.org"}, prints: "b@c.org"},
		"source route to a bare name":       {in: "<@a.org:postmaster>", want: Mailbox{"postmaster", ""}, prints: "postmaster"},
		"source route to a quoted colon":    {in: `<@a.org:"b:c"@d.org>`, want: Mailbox{"b:c", "d.org"}, prints: `"b:c"@d.org`},
		"6531 local part":                   {in: "δοκιμή@example.org", want: Mailbox{"δοκιμή", "example.org"}},
		"6531 both parts":                   {in: "пользователь@почта.example", want: Mailbox{"пользователь", "почта.example"}},
		"6531 quoted":                       {in: `"josé maria"@example.org`, want: Mailbox{"josé maria", "example.org"}},
		"6531 han":                          {in: "用户@例子.广告", want: Mailbox{"用户", "例子.广告"}},
		"6531 right to left":                {in: "اختبار@مثال.إختبار", want: Mailbox{"اختبار", "مثال.إختبار"}},
		"5890 A-label":                      {in: "a@xn--bcher-kva.example", want: Mailbox{"a", "xn--bcher-kva.example"}},
		"5890 U-label with final dot":       {in: "a@bücher.example.", want: Mailbox{"a", "bücher.example"}, prints: "a@bücher.example"},
		"6531 emoji local part":             {in: "👩‍💻@example.org", want: Mailbox{"👩‍💻", "example.org"}},
		"quoted pair before ASCII only":     {in: `"\a\b"@example.org`, want: Mailbox{"ab", "example.org"}, prints: "ab@example.org"},
		"isemail hyphens inside":            {in: "a@b--c.d-e.org", want: Mailbox{"a", "b--c.d-e.org"}},
		"local part begins with at, quoted": {in: `"@home"@example.org`, want: Mailbox{"@home", "example.org"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := assert.Get(Parse(c.in))(t)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			prints := c.prints
			if prints == "" && !got.IsNull() {
				prints = c.in
			}
			if got := got.String(); got != prints {
				t.Errorf("prints: got %q, want %q", got, prints)
			}
			if again, err := Parse(got.String()); err != nil || again != got {
				t.Errorf("read again: got %+v, %v, want %+v", again, err, got)
			}
			if _, err := got.ASCIIDomain(); err != nil {
				t.Errorf("ASCIIDomain: %v", err)
			}
		})
	}
}

func TestBadAddressesAreRefusedWithAReason(t *testing.T) {
	long := strings.Repeat("x", 64)
	cases := map[string]struct{ in, reason string }{
		"NUL":                                {"a\x00b@example.org", "control character 0x00"},
		"newline":                            {"a@example.org\nto <x>", "control character 0x0a"},
		"CR last":                            {"a@example.org\r", "control character 0x0d"},
		"tab inside":                         {"a\tb@example.org", "control character 0x09"},
		"newline in quotes":                  {"\"a\nb\"@example.org", "control character 0x0a"},
		"DEL":                                {"a\x7f@example.org", "control character 0x7f"},
		"C1 control":                         {"a\u0085b@example.org", "control character U+0085"},
		"Latin-1, not UTF-8":                 {"j\xfcrgen@example.org", "not UTF-8"},
		"bracket not closed":                 {"<a@example.org", "< without >"},
		"bracket alone":                      {"<", "< without >"},
		"bracket closed only":                {"a@example.org>", `">" in the domain`},
		"two pairs of brackets":              {"<<a@example.org>>", `"<" where a local part must begin`},
		"text after the bracket":             {"<a@b> SIZE=1", "< without >"},
		"isemail at alone":                   {"@", "local part is empty"},
		"isemail no local part":              {"@example.org", "local part is empty"},
		"isemail no domain":                  {"test@", "domain is empty"},
		"isemail two at":                     {"a@b@example.org", `"@" in the domain`},
		"isemail blank unquoted":             {"a b@example.org", `" " after the local part "a"`},
		"isemail blank in the domain":        {"a@exa mple.org", `" " in the domain`},
		"isemail comma":                      {"a,b@example.org", `"," after the local part "a"`},
		"isemail semicolon":                  {"a;b@example.org", `";" after the local part "a"`},
		"isemail colon":                      {"a:b@example.org", `":" after the local part "a"`},
		"isemail backslash":                  {`a\@b@example.org`, `"\\" after the local part "a"`},
		"isemail comment":                    {"(x)a@example.org", `"(" where a local part must begin`},
		"isemail quotes inside":              {`te"st"@example.org`, `"\"" after the local part "te"`},
		"isemail text after the quotes":      {`"test"test@example.org`, `"t" after the local part "test"`},
		"isemail quotes without end":         {`"test@example.org`, "quoted local part without end"},
		"isemail quoted pair without end":    {`"test\`, "\\ before nothing that may be quoted"},
		"6531 quoted pair before UTF-8":      {`"\é"@example.org`, "\\ before nothing that may be quoted"},
		"empty quotes, no domain":            {`""`, "local part is empty"},
		"isemail label begins with hyphen":   {"a@-b.org", `label "-b" begins or ends with a hyphen`},
		"isemail label ends with hyphen":     {"a@b-.org", `label "b-" begins or ends with a hyphen`},
		"isemail two dots in the domain":     {"a@b..org", "empty label in the domain"},
		"isemail dot first in the domain":    {"a@.org", "empty label in the domain"},
		"isemail two final dots":             {"a@example.org..", "empty label in the domain"},
		"isemail dot alone":                  {"a@.", "domain is empty"},
		"1035 label over 63":                 {"a@" + long + ".org", "label of more than 63 bytes in the domain"},
		"5321 domain over 255":               {"a@" + strings.Repeat("x.", 128) + "org", "domain of more than 255 bytes"},
		"local part over the limit":          {strings.Repeat("x", 513) + "@example.org", "local part of more than 512 bytes"},
		"literal not closed":                 {"a@[192.0.2.1", "[ without ]"},
		"literal with text behind":           {"a@[192.0.2.1]x", "[ without ]"},
		"literal with a bad number":          {"a@[192.0.2.256]", "no IPv4 address in the literal"},
		"literal with a leading zero":        {"a@[192.0.2.01]", "no IPv4 address in the literal"},
		"literal empty":                      {"a@[]", "no IPv4 address in the literal"},
		"literal IPv6 without its tag":       {"a@[2001:db8::1]", "IPv6 address without its IPv6: tag"},
		"literal IPv4 under IPv6":            {"a@[IPv6:192.0.2.1]", "no IPv6 address in the literal"},
		"literal IPv6 with a zone":           {"a@[IPv6:fe80::1%eth0]", "no IPv6 address in the literal"},
		"literal with an empty tag":          {"a@[:x]", "no address in the literal"},
		"literal with an empty text":         {"a@[tag:]", "no address in the literal"},
		"source route without mailbox":       {"<@a.org:>", "source route without a mailbox"},
		"source route twice":                 {"<@a.org:@b.org:c@d.org>", "source route without a mailbox"},
		"source route, at missing":           {"<@a.org,b.org:c@d.org>", "source route: @ expected"},
		"source route with a bad domain":     {"<@a..org:c@d.org>", "source route: empty label in the domain"},
		"source route without colon":         {"@a.org,b@c.org", "source route: @ expected"},
		"5891 label with a forbidden char":   {"a@exa⒈mple.org", "no internationalized domain"},
		"5891 label that maps to a star":     {"a@exa＊mple.org", "no internationalized domain"},
		"5891 bidi rule":                     {"a@אb.example", "no internationalized domain"},
		"5890 U-label too long in A-form":    {"a@" + strings.Repeat("ü", 60) + ".org", ""},
		"ideographic full stops, no label":   {"a@例。。org", ""},
		"percent hack is no literal bracket": {"a@b[c]", `"[" in the domain`},
		"blank in brackets":                  {"< a@b.org>", `" " where a local part must begin`},
		"shell words":                        {"a@b.org;rm", `";" in the domain`},
		"option":                             {"a@-oProxyCommand", "begins or ends with a hyphen"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(c.in)
			if err == nil {
				t.Fatalf("got %+v and no error", got)
			}
			if !got.IsNull() {
				t.Errorf("got %+v beside the error", got)
			}
			if !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %q, want it to say %q", err, c.reason)
			}
		})
	}
}

func TestDomainsAreComparedInOneForm(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"none":                {"postmaster", ""},
		"upper case":          {"a@EXAMPLE.Org", "example.org"},
		"U-label":             {"a@Bücher.example", "xn--bcher-kva.example"},
		"A-label":             {"a@XN--BCHER-KVA.example", "xn--bcher-kva.example"},
		"sharp s stays":       {"a@straße.example", "xn--strae-oqa.example"},
		"wide letters":        {"a@ｅｘａｍｐｌｅ.org", "example.org"},
		"ideographic stop":    {"a@例。org", "xn--fsq.org"},
		"decomposed umlaut":   {"a@bu\u0308cher.example", "xn--bcher-kva.example"},
		"IPv4 literal":        {"a@[192.0.2.1]", "[192.0.2.1]"},
		"IPv6 literal, long":  {"a@[IPv6:2001:DB8:0:0:0:0:0:1]", "[ipv6:2001:db8::1]"},
		"IPv6 literal, short": {"a@[ipv6:2001:db8::1]", "[ipv6:2001:db8::1]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := assert.Get(Parse(c.in))(t)
			if got, err := m.ASCIIDomain(); err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
	if _, err := (Mailbox{"a", "b..c"}).ASCIIDomain(); err == nil {
		t.Error("a domain that Parse would refuse: got no error")
	}
}

func TestSMTPUTF8IsNeededForNonASCIIOnly(t *testing.T) {
	cases := map[string]struct {
		in   Mailbox
		want bool
	}{
		"null sender":      {Mailbox{}, true},
		"ASCII":            {Mailbox{"a", "b.org"}, true},
		"A-label":          {Mailbox{"a", "xn--bcher-kva.example"}, true},
		"U-label":          {Mailbox{"a", "bücher.example"}, false},
		"UTF-8 local part": {Mailbox{"jürgen", "b.org"}, false},
	}
	for name, c := range cases {
		if got := c.in.IsASCII(); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// What Parse reads, String prints so that Parse reads it again as the same mailbox.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a@b", "<a@b>", "<>", `"a b"@c.d`, `"a\"\\"@[192.0.2.1]`, "<@a,@b:c@d>", "ü@ü.example",
		"a@[IPv6:::1]", "a..b@c.", `""@x`, `"@"`, "a@例。org", "@[a:b]:c"} {
		f.Add(s)
	}
	for _, c := range readTable(f) {
		f.Add(c.in)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := Parse(s)
		if err != nil {
			return
		}
		printed := m.String()
		for _, form := range []string{printed, "<" + printed + ">"} {
			again, err := Parse(form)
			if err != nil || again != m {
				t.Fatalf("%q gives %+v, printed as %q that gives %+v, %v", s, m, form, again, err)
			}
		}
		if strings.ContainsAny(printed, "\x00\r\n") {
			t.Fatalf("%q prints as %q", s, printed)
		}
		d, err := m.ASCIIDomain()
		if err != nil || !isASCII(d) {
			t.Fatalf("%q: domain in A-label form: %q, %v", s, d, err)
		}
		if (d == "") != (m.Domain == "") {
			t.Fatalf("%q: domain %q became %q", s, m.Domain, d)
		}
		if again, err := (Mailbox{Local: "x", Domain: d}).ASCIIDomain(); err != nil || again != d {
			t.Fatalf("%q: domain %q in A-label form again: %q, %v", s, d, again, err)
		}
		if same, err := Parse(m.Key()); err != nil || same.Key() != m.Key() {
			t.Fatalf("%q: key %q is the address %+v, %v", s, m.Key(), same, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("<first.last+box@mail.example.org>"); err != nil {
			b.Fatal(err)
		}
	}
}
