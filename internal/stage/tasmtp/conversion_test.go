package tasmtp

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
)

// conversion is a message, and what a server gets; "" and the status if it gets nothing.
type conversion struct {
	header, stored string
	want, status   string
}

// run sends each message to a server with an extension.
func runConversions(t *testing.T, extension string, cases map[string]conversion) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := oldServer(t, extension)
			s := newStation(t, sink.Port(), "")
			file := s.NewName()
			s.Write("queue/"+file, []byte(Envelope()+c.stored))
			s.Specify(file, Message{Header: c.header, Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}, int64(len(Envelope())))
			answers := s.deliver(file, "[127.0.0.1]")
			if len(answers) != 1 {
				t.Fatalf("got %+v", answers)
			}
			if c.status != "" {
				if got := s.Spec(file).Diagnostics; answers[0].Word != taproto.Error2 || len(got) != 1 || got[0].Notary.Status != c.status {
					t.Errorf("got %+v %+v, want %s", answers, got, c.status)
				}
				if n := len(sink.Messages()); n > 0 {
					t.Errorf("the server got\n%s", sink.Messages()[0].Data)
				}
				return
			}
			if answers[0].Word != taproto.OK3 {
				t.Fatalf("got %+v", answers)
			}
			assert.Equal(t, strings.ReplaceAll(sink.Messages()[0].Data, "\r\n", "\n"), c.want+".\n")
		})
	}
}

const mixed = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n"

// Parts are found where RFC 2045 says that they are; what belongs to no part that is sure
// fails. Nothing arrives as question marks.
func TestDel5ServerGetsEveryByte(t *testing.T) {
	cases := map[string]conversion{
		"text before and behind the parts": {header: mixed, stored: "\nprä=\n--b\n\nxxxxxxxx ä\n--b--\nfür\n",
			want: mixed + "\npr=C3=A4=3D\n--b\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--b--\nf=C3=BCr\n"},
		"boundary never shown":            {header: mixed, stored: "\nGrüße an alle\n", status: "5.6.3"},
		"boundary of another message":     {header: mixed, stored: "\n--c\n\nGrüße an alle\n--c--\n", status: "5.6.3"},
		"boundary not named":              {header: "MIME-Version: 1.0\nContent-Type: multipart/mixed\n", stored: "\n--c\n\nGrüße\n--c--\n", status: "5.6.3"},
		"only the last boundary":          {header: mixed, stored: "\nGrüße an alle\n--b--\n", status: "5.6.3"},
		"inner boundary never shown":      {header: mixed, stored: "\n--b\nContent-Type: multipart/mixed; boundary=c\n\nGrüße\n--b--\n", status: "5.6.3"},
		"a part behind the last boundary": {header: mixed, stored: "\n--b\n\nx\n--b--\n--b\n\nGrüße\n--b--\n", status: "5.6.3"},
		"boundary with more behind it":    {header: mixed, stored: "\n--b\n\nxxxxxxxx ä\n--b x\n\ny\n--b--\n", status: "5.6.3"},
		"inner boundary is the outer one": {header: mixed, stored: "\n--b\n" + mixed + "\n--b\n\nxxxxxxxx ä\n--b--\n--b--\nä\n--b--\n", status: "5.6.3"},
		"text without a header":           {header: mixed, stored: "\n--b\nGrüße\n\nmore\n--b--\n", status: "5.6.3"},
		"two types":                       {header: mixed, stored: "\n--b\nContent-Type: text/plain\nContent-Type: application/x\n\nGrüße\n--b--\n", status: "5.6.3"},
		"a multipart that is base64":      {header: mixed + "Content-Transfer-Encoding: base64\n", stored: "\n--b\n\nGrüße\n--b--\n", status: "5.6.3"},
		"a comment that does not end":     {header: strings.Replace(mixed, "; b", "; (x; b", 1), stored: "\n--b\n\nGrüße\n--b--\n", status: "5.6.3"},
		"the same, and no 8-bit content":  {header: strings.Replace(mixed, "; b", "; (x; b", 1), stored: "\n--b\n\nx\n--b--\n", want: strings.Replace(mixed, "; b", "; (x; b", 1) + "\n--b\n\nx\n--b--\n"},
		"8-bit content in a boundary":     {header: "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"ä\"\n", stored: "\n--ä\n\nx\n--ä--\n", status: "5.6.3"},
		"encoding that could be a boundary": {header: "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"=C3=A4\"\n",
			stored: "\n--=C3=A4\n\nxxxxxxxx\n--ä\nxxxxxxxx\n--=C3=A4--\n", status: "5.6.3"},
		"a dash behind a line break of ours": {header: mixed, stored: "\n--b\n\n" + "ä" + strings.Repeat("x", 69) + "--b\n--b--\n",
			want: mixed + "\n--b\nContent-Transfer-Encoding: quoted-printable\n\n=C3=A4" + strings.Repeat("x", 69) + "=\n=2D-b\n--b--\n"},
	}
	for name, value := range map[string]string{
		"comment behind the type":      `multipart/mixed (a \) (b) "); boundary=b`,
		"comments all over":            `(a) multipart/mixed (b) ; (; boundary=no) boundary (c) = (d) "b" (e)`,
		"comment between the words":    "multipart (a) / (b) mixed; boundary=b",
		"folded comment":               "multipart/mixed (a\n\tboundary=no); boundary=b",
		"no comment in a quoted one":   `multipart/mixed; x="(a"; boundary=b; y=")"`,
		"boundary in a quoted one":     `multipart/mixed; x="; boundary=no"; boundary=b`,
		"the same, not strictly valid": `multipart/mixed; z=a b; x="\"; boundary=no"; boundary=b`,
		"quoted one in a comment":      `multipart/mixed (a "b); boundary=b`,
	} {
		header := "MIME-Version: 1.0\nContent-Type: " + value + "\n"
		cases[name] = conversion{header: header, stored: "\n--b\n\nxxxxxxxx ä\n--b--\n",
			want: header + "\n--b\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--b--\n"}
	}
	runConversions(t, "", cases)
}

// RFC 2045 §6: an encoding that is named wrongly, or not kept to, is no reason for a report
// of failure.
func TestNet4WrongEncodingIsSent(t *testing.T) {
	const label = "MIME-Version: 1.0\nContent-Transfer-Encoding: "
	long := strings.Repeat("x", 70)
	cases := map[string]conversion{
		"octets in quoted-printable": {header: label + "quoted-printable\n", stored: "\na=3Dä =\n b=C3=A4 \n",
			want: label + "quoted-printable\n\na=3D=C3=A4 =\n b=C3=A4 \n"},
		"signs that escape nothing": {header: label + "Quoted-Printable (x)\n", stored: "\n=ä =4ä =x =4\n= =\xff=\n==\n",
			want: label + "Quoted-Printable (x)\n\n=3D=C3=A4 =3D4=C3=A4 =x =4\n= =3D=FF=\n==\n"},
		"lines that become too long": {header: label + "quoted-printable\n", stored: "\nä" + long + "   =41\t\n",
			want: label + "quoted-printable\n\n=C3=A4" + long[:69] + "=\nx   =41\t\n"},
		"octets in base64":      {header: label + "base64\n", stored: "\nAAAAä\n", status: "5.6.3"},
		"an encoding of theirs": {header: label + "x-uuencode\n", stored: "\nä\n", status: "5.6.3"},
		"signed": {header: "MIME-Version: 1.0\nContent-Type: multipart/signed; boundary=b\n", status: "5.6.2",
			stored: "\n--b\nContent-Transfer-Encoding: quoted-printable\n\nä\n--b\n\nsig\n--b--\n"},
	}
	for _, value := range []string{"7-bit", "plain", "8-bit", "7bit", "utf-8", "none", "8bit;", "8bit (x)", "(x) 8BIT", "8 bit", `"8bit"`, "7bits"} {
		cases["label "+value] = conversion{header: label + value + "\n", stored: "\nxxxxxxxx ä\n", want: label + "quoted-printable\n\nxxxxxxxx =C3=A4\n"}
	}
	runConversions(t, "", cases)
}

// RFC 3030 §3: a part that is binary is encoded, whatever the header of the message says
// and whatever else the server takes.
func TestDel9BinaryPartIsEncodedForEveryServer(t *testing.T) {
	const part = "Content-Type: application/x\n%s\n\n\x00\n\r\xff\n"
	coded := "Content-Type: application/x\nContent-Transfer-Encoding: base64\n\nAAoN/w==\n"
	cases := map[string]conversion{}
	for name, label := range map[string]string{
		"plain": "Content-Transfer-Encoding: binary", "folded": "content-transfer-encoding:\n  Binary", "comment": "Content-Transfer-Encoding: (8bit) binary (x)",
	} {
		stored := "\n--b\n" + strings.Replace(part, "%s", label, 1) + "--b\nContent-Transfer-Encoding: 8bit\n\ngrün\n--b--\n"
		cases[name] = conversion{header: mixed, stored: stored, want: mixed + "\n--b\n" + coded + "--b\nContent-Transfer-Encoding: 8bit\n\ngrün\n--b--\n"}
	}
	cases["deep inside"] = conversion{header: "MIME-Version: 1.0\nContent-Type: message/rfc822\n",
		stored: "\n" + mixed + "\n--b\n" + strings.Replace(part, "%s", "Content-Transfer-Encoding: binary", 1) + "--b--\n",
		want:   "MIME-Version: 1.0\nContent-Type: message/rfc822\n\n" + mixed + "\n--b\n" + coded + "--b--\n"}
	cases["only text says so"] = conversion{header: mixed, stored: "\n--b\n\nContent-Transfer-Encoding: binary\n\ngrün\n--b--\n",
		want: mixed + "\n--b\n\nContent-Transfer-Encoding: binary\n\ngrün\n--b--\n"}
	const signed = "MIME-Version: 1.0\nContent-Type: multipart/signed; boundary=b\n"
	const inside = "\n--b\nContent-Transfer-Encoding: binary\n\n%s\n--b\n\nsig\n--b--\n"
	text := strings.Replace(inside, "%s", "grün", 1)
	cases["signed, and only called binary"] = conversion{header: signed, stored: text, want: signed + text}
	cases["signed, with NUL"] = conversion{header: signed, stored: strings.Replace(inside, "%s", "x\x00", 1), status: "5.6.2"}
	cases["signed, with CR"] = conversion{header: signed, stored: strings.Replace(inside, "%s", "x\rx", 1), status: "5.6.2"}
	runConversions(t, "8BITMIME", cases)
}

// What needs no conversion is sent byte for byte: signatures go on to verify.
func TestDel5SignedMessageIsLeftAlone(t *testing.T) {
	const dkim = "DKIM-Signature: v=1; a=rsa-sha256; d=x.test; s=s; bh=x; b=y\n"
	const signed = dkim + "MIME-Version: 1.0\nContent-Type: multipart/signed (x); boundary=b\nContent-Transfer-Encoding: 8bit\n"
	cases := map[string]conversion{}
	for name, stored := range map[string]string{
		"7-bit":                   "\n--b\nContent-Transfer-Encoding: 8bit\n\nx = \n--b\n\nsig\n--b--\n",
		"8-bit in a part's field": "\n--b\nContent-Disposition: attachment; filename=\"grün\"\nContent-Transfer-Encoding: 8bit\n\nx\n--b--\n",
		"binary, and signed":      "\n--b\nContent-Transfer-Encoding: binary\n\nx = \n--b\n\nsig\n--b--\n",
	} {
		cases[name] = conversion{header: signed, stored: stored, want: signed + stored}
	}
	cases["8-bit in a field alone"] = conversion{header: dkim + mixed + "Content-Transfer-Encoding: 8bit\n",
		stored: "\n--b\nContent-Disposition: attachment; filename=\"grün\"\nContent-Transfer-Encoding: 8bit\n\nx\n--b--\n",
		want:   dkim + mixed + "Content-Transfer-Encoding: 8bit\n\n--b\nContent-Disposition: attachment; filename=\"grün\"\nContent-Transfer-Encoding: 8bit\n\nx\n--b--\n"}
	runConversions(t, "", cases)
}
