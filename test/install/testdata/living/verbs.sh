# zmctl, where systemd runs the daemons.
zmctl status | grep -q 'run by systemd' || fail "$(zmctl status)"
zmctl stop router | grep -q '^router *no' || fail "$(zmctl status)"
[ "$(systemctl is-active zmailer-router.service)" = inactive ] || fail "router runs"
zmctl status | grep -q "zmctl start router" || fail "$(zmctl status)"
send 'without a router' alice
zmctl start | grep -q '^router *yes' || fail "$(zmctl status)"
once 'without a router' /var/mail/alice
zmctl status >/dev/null || fail "$(zmctl status)"

old=$(pid_of router) other=$(pid_of scheduler)
zmctl restart router
[ "$(pid_of router)" != "$old" ] && [ "$(pid_of scheduler)" = "$other" ] || fail "restart router has restarted another"
zmctl restart
[ "$(pid_of scheduler)" != "$other" ] || fail "restart has not restarted the scheduler"
healthy

zmctl stop
for unit in zmailer.target zmailer-agents.socket $services; do
	[ "$(systemctl is-active $unit)" = inactive ] || fail "$unit is $(systemctl is-active $unit) after zmctl stop"
done
zmctl stop # again: nothing to do
zmctl freeze-service a test
code=0
zmctl start || code=$?
[ $code = 78 ] || fail "started while frozen: $code"
zmctl thaw-service
zmctl start
healthy
connects || fail "smtpserver is not ready after zmctl start"

# By hand, the same.
systemctl stop zmailer.target
for unit in $services; do
	await sh -c "[ \"\$(systemctl is-active $unit)\" = inactive ]"
done
systemctl start zmailer.target
healthy
connects || fail "smtpserver is not ready after systemctl start"

# scheduler.conf is read again.
reads() { zmctl log --event conf-read | wc -l; }
n=$(reads 2>/dev/null || true)
systemctl reload zmailer-scheduler.service
await sh -c "[ \"\$(zmctl log --event conf-read | wc -l)\" -gt ${n:-0} ]"
n=$(reads)
zmctl reload
await sh -c "[ \"\$(zmctl log --event conf-read | wc -l)\" -gt $n ]"
healthy

# The journal has it all.
send 'in the journal' alice
once 'in the journal' /var/mail/alice
await sh -c 'zmctl log --event delivered --lines 1 --json | grep -q alice'
id=$(zmctl log --event delivered --lines 1 | sed -n 's/.*[ ]id=\([^ ]*\).*/\1/p')
zmctl log "$id" | grep -q msg=routed || fail "zmctl log $id: $(zmctl log "$id")"
zmctl trace "$id" | grep -q alice || fail "$(zmctl trace "$id")"
journalctl --no-pager -u 'zmailer*' | grep -q "$id" || fail "the journal does not know $id"
timeout 20 zmctl log --follow --event delivered >/tmp/followed &
follower=$!
send 'followed' alice
await grep -q 'msg=delivered' /tmp/followed
kill $follower
