package crash

// message is one submission of the load.
type message struct {
	subject, from string
	to            []string
	want          []string // who gets it, after aliases
	report        bool     // its sender hears of a failure
	freeze        bool     // a policy holds it before it is routed
	user          bool     // a user's submit has it, whose message a router picks up
	program       bool     // another program than ours writes it, as root
}

const sender = "bob@mta.example"

// user submits some of the messages; nothing else has this uid. userSender is the address
// that the router gives to him.
const (
	user       = 65533
	userSender = "uid65533@mta.example"
)

// load is the mail of each life: a relay; one to three recipients on two hosts of
// which one fails; deferrals beside deliveries on the same host, twice; local mail and a
// user who is not there; an alias to three; one that is frozen and thawed; one whose
// list cannot be read at first; one that fails for all, which makes one report; what a
// user submits, and what a program of root's puts into public/ that is not one of ours.
var load = []message{
	{subject: "relay", from: sender, to: []string{"a@one.example"}, want: []string{"a@one.example"}},
	{subject: "three", from: sender, to: []string{"a@one.example", "b@two.example", "fail@two.example"},
		want: []string{"a@one.example", "b@two.example"}, report: true},
	{subject: "later", from: sender, to: []string{"defer@one.example", "b@one.example", "defer2@one.example"},
		want: []string{"defer@one.example", "b@one.example", "defer2@one.example"}},
	{subject: "local", from: sender, to: []string{"alice@mta.example", "nobody@mta.example"}, want: []string{"alice@mta.example"}, report: true},
	{subject: "alias", from: sender, to: []string{"trio@mta.example"}, want: []string{"alice@mta.example", "a@one.example", "b@two.example"}},
	{subject: "frozen", from: sender, to: []string{"a@one.example"}, want: []string{"a@one.example"}, freeze: true},
	{subject: "listed", from: sender, to: []string{"list@mta.example"}, want: []string{"a@one.example", "b@one.example"}},
	{subject: "group", from: sender, to: []string{"fail@one.example", "fail@two.example", "nobody@mta.example"}, report: true},
	{subject: "user", from: userSender, to: []string{"a@one.example", "fail@two.example"}, want: []string{"a@one.example"}, report: true, user: true},
	{subject: "program", from: sender, to: []string{"b@two.example"}, want: []string{"b@two.example"}, program: true},
}

// wanted is every delivery that the load makes.
func wanted(w *world) map[string]bool {
	want := map[string]bool{}
	for _, m := range load {
		if !w.accepted[m.subject] {
			continue
		}
		for _, to := range m.want {
			want[m.subject+"/"+to] = true
		}
		if m.report {
			want["report on "+m.subject+"/"+m.from] = true
		}
	}
	return want
}
