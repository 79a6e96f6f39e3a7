package router

import "testing"

// The specification says so when the client had logged in, and not otherwise.
func TestAtk3MailOfUsersWhoLoggedInIsMarked(t *testing.T) {
	t.Parallel()
	for with, want := range map[string]bool{"ESMTP": false, "SMTP": false, "ESMTPS": false, "ESMTPA": true, "ESMTPSA": true, "UTF8SMTPSA": true, "": false} {
		t.Run(with, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			line := ""
			if with != "" {
				line = "with " + with + "\n"
			}
			m := o.one("external\nrcvdfrom a.example ([192.0.2.1])\n" + line + "from <q@example.net>\nto <a@example.net>\nenv-end\nSubject: x\n\n")
			if m.spec.Own != want {
				t.Errorf("got %v, want %v\n%s", m.spec.Own, want, m.file)
			}
		})
	}
}
