# What hangs is killed and started again. The units' time is three minutes.
for service in smtpserver router scheduler agents; do
	dir=/run/systemd/system/zmailer-$service.service.d
	mkdir -p $dir
	printf '[Service]\nWatchdogSec=2\n' >$dir/watchdog.conf
done
systemctl daemon-reload
zmctl restart
systemctl restart zmailer-agents.service
await connects
send 'before' alice
once 'before' /var/mail/alice
stopped=
for service in smtpserver router scheduler agents; do
	stopped="$stopped $service=$(pid_of $service)"
	kill -STOP "$(pid_of $service)"
done
send 'while all hang' alice
for pair in $stopped; do
	service=${pair%=*} pid=${pair#*=}
	await sh -c "new=\$(systemctl show --property=MainPID --value zmailer-$service.service); [ \$new -gt 0 ] && [ \$new != $pid ]"
	journalctl --no-pager -u zmailer-$service.service | grep -q 'Watchdog timeout' || fail "$service was not killed by the watchdog"
done
once 'while all hang' /var/mail/alice
await connects
rm -r /run/systemd/system/zmailer-*.service.d
systemctl daemon-reload
zmctl restart
for service in smtpserver router scheduler agents; do
	await systemctl is-active zmailer-$service.service
done
healthy
await empty
