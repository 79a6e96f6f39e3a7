#!/bin/sh
# Debian: configure, with the old version behind it at an upgrade; RPM: 1 or 2.
set -e
lib=/usr/libexec/zmailer
man=/usr/share/man/man8
case "$1" in
configure) if [ -n "$2" ] && [ ! -e /run/zmailer.new ]; then upgrade=yes; else upgrade=; fi ;;
1) upgrade= ;;
2) upgrade=yes ;;
*) exit 0 ;;
esac
rm -f /run/zmailer.new

# What is missing of the postoffice; what is there stays. What cannot be made now does not
# leave the package half installed: the daemons say what is wrong.
$lib/zmctl --config /etc/zmailer/zmailer.conf init >/dev/null ||
	echo "zmailer: the postoffice is not ready; mend that, then: zmctl init" >&2

alternatives=$(command -v update-alternatives || command -v alternatives || true)
if [ -n "$alternatives" ]; then
	$alternatives --install /usr/sbin/sendmail mta $lib/submit 90 \
		--slave /usr/lib/sendmail mta-sendmail $lib/submit \
		--slave /usr/bin/mailq mta-mailq $lib/zmctl \
		--slave /usr/bin/newaliases mta-newaliases $lib/zmctl \
		--slave /usr/share/man/man8/sendmail.8.gz mta-sendmailman $man/submit.8.gz \
		--slave /usr/share/man/man1/mailq.1.gz mta-mailqman $man/zmctl-queue.8.gz \
		--slave /usr/share/man/man1/newaliases.1.gz mta-newaliasesman $man/zmctl-check-config.8.gz
fi

# On Debian what is installed is started, unless policy-rc.d forbids it; on others presets
# decide. That the port is taken does not fail the installation: systemctl status tells.
if [ -z "$upgrade" ] && command -v systemctl >/dev/null; then
	systemctl --no-reload preset zmailer.target zmailer-agents.socket >/dev/null 2>&1 || true
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemd-tmpfiles --create zmailer.conf || true
	invoke=$(command -v deb-systemd-invoke || echo systemctl)
	if [ -n "$upgrade" ]; then
		$invoke try-restart zmailer-agents.service zmailer-scheduler.service zmailer-router.service zmailer-smtpserver.service zmailer-web.service || true
	elif [ "$1" = configure ]; then
		$invoke start zmailer.target || true
	fi
elif [ -n "$upgrade" ]; then
	# Without systemd the daemons of zmctl start run on with the old programs otherwise.
	$lib/zmctl --config /etc/zmailer/zmailer.conf restart --direct --if-running >/dev/null ||
		echo "zmailer: the daemons are those of the old version still; mend what is wrong, then: zmctl restart" >&2
fi
exit 0
