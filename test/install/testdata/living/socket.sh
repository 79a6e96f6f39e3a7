# systemd listens: no connection is refused, whatever smtpserver does, and none is taken and
# left without a greeting.
[ "$(systemctl is-enabled zmailer-smtpserver.socket)" = enabled ] || fail "the page has not enabled the socket"
connects || fail "the socket starts no smtpserver"
cat >/tmp/knock.sh <<'K'
n=0
while [ ! -e /tmp/enough ]; do
	(
		exec 3<>/dev/tcp/127.0.0.1/25 || { echo "refused at $n"; exit; }
		read -t 20 -r line <&3 && [ "${line%% *}" = 220 ] || echo "cut at $n: $line"
	) 2>/dev/null
	n=$((n + 1))
done
echo "$n connections"
K
rm -f /tmp/enough
trap 'touch /tmp/enough' EXIT
bash /tmp/knock.sh >/tmp/knocked 2>&1 &
knocking=$!
zmctl restart smtpserver
systemctl restart zmailer-smtpserver.service
kill -KILL "$(pid_of smtpserver)"
await sh -c '[ "$(systemctl is-active zmailer-smtpserver.service)" = active ]'
zmctl restart
[ $# = 0 ] || dpkg -i "$1"
touch /tmp/enough
wait $knocking
cat /tmp/knocked
! grep refused /tmp/knocked || fail "connections were refused"
# Only the connections that the killed server had just accepted are lost.
[ "$(grep -c cut /tmp/knocked)" -le 1 ] || fail "connections were cut"
[ "$(sed -n 's/ connections//p' /tmp/knocked)" -gt 10 ] || fail "no client has connected"
healthy

# Stopped is stopped: the socket goes, too, and comes back.
zmctl stop
! connects || fail "it listens after zmctl stop"
zmctl start
connects || fail "it does not listen after zmctl start"
ss -H -lntp 'sport = :25' | grep -q systemd || fail "systemd does not listen: $(ss -lntp)"
zmctl status >/dev/null || fail "$(zmctl status)"

# And back.
systemctl disable --now zmailer-smtpserver.socket
zmctl restart smtpserver
ss -H -lntp 'sport = :25' | grep -q smtpserver || fail "smtpserver does not listen by itself: $(ss -lntp)"
