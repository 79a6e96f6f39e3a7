# What dies is started again; nothing is lost, nothing comes twice.
for service in smtpserver router scheduler agents; do
	pid=$(pid_of $service)
	kill -KILL $pid
	send "killed $service" alice
	once "killed $service" /var/mail/alice
	await sh -c "[ \"\$(systemctl show --property=MainPID --value zmailer-$service.service)\" -gt 0 ]"
	[ "$(pid_of $service)" != $pid ] || fail "$service lives"
	await connects
done

# An agent that delivers: what it had begun is done again.
touch /home/bob/hold
printf '"|touch /home/bob/began; while [ -e /home/bob/hold ]; do sleep 0.05; done; cat >>/home/bob/again"\n' >/home/bob/.forward
chown bob: /home/bob/.forward
send 'agent killed' bob
await test -e /home/bob/began
pkill -KILL -x ta-mailbox
rm /home/bob/hold
zmctl retry --all --yes >/dev/null || zmctl flush || true
await grep -q 'agent killed' /home/bob/again
await empty
rm /home/bob/.forward

for service in smtpserver router scheduler agents; do
	await systemctl is-active zmailer-$service.service
done
healthy
