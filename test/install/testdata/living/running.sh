# What the package has started, and what a boot starts.
healthy
for unit in zmailer.target zmailer-agents.socket; do
	systemctl is-enabled $unit >/dev/null || fail "$unit is not enabled"
done
for unit in zmailer-smtpserver.socket zmailer-web.service; do
	! systemctl is-enabled $unit >/dev/null || fail "$unit is enabled"
done

# sendmail and its other names have their manual pages.
for page in man8/sendmail.8 man1/mailq.1 man1/newaliases.1; do
	zcat /usr/share/man/$page.gz | grep -q '^\.TH' || fail "no manual page $page"
done

# The target is reached when all serve; systemctl status tells what they do.
for service in smtpserver router scheduler; do
	unit=zmailer-$service.service
	[ "$(property $unit ActiveEnterTimestampMonotonic)" -le "$(property zmailer.target ActiveEnterTimestampMonotonic)" ] || fail "$unit was ready after the target"
	[ "$(property zmailer-agents.socket ActiveEnterTimestampMonotonic)" -le "$(property $unit ActiveEnterTimestampMonotonic)" ] || fail "$unit was there before the agents' socket"
	[ "$(property $unit StatusText)" != "" ] || fail "$unit tells nothing"
	[ "$(property $unit NRestarts)" = 0 ] || fail "$unit was started $(property $unit NRestarts) times again"
done

# No port is open to the outside.
ss -H -lntu
[ "$(ss -H -lntu | awk '{print $5}' | grep -v -e '^127\.' -e '^\[::1\]')" = "" ] || fail "it listens to others: $(ss -H -lntup)"
ss -H -lnt | grep -q '127.0.0.1:25 ' || fail "no process listens on port 25"

# As systemd has loaded them; test/install asks the same of the files.
for unit in $services zmailer-web.service; do
	systemd-analyze security --threshold=20 $unit >/tmp/exposure || fail "$(tail -n 1 /tmp/exposure)"
	tail -n 1 /tmp/exposure
done
