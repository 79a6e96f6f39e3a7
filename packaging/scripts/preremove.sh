#!/bin/sh
# Debian: remove or upgrade; RPM: 0 is the removal. Stops the daemons, which finish what
# they have begun; no mail is touched.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl stop zmailer-web.service zmailer.target zmailer-smtpserver.socket zmailer-smtpserver.service zmailer-router.service zmailer-scheduler.service zmailer-agents.socket zmailer-agents.service || true
else
	/usr/libexec/zmailer/zmctl --config /etc/zmailer/zmailer.conf stop >/dev/null 2>&1 || true
fi
if command -v systemctl >/dev/null; then
	systemctl --no-reload disable zmailer-web.service zmailer.target zmailer-agents.socket zmailer-smtpserver.socket >/dev/null 2>&1 || true
fi
alternatives=$(command -v update-alternatives || command -v alternatives || true)
if [ -n "$alternatives" ]; then $alternatives --remove mta /usr/libexec/zmailer/submit || true; fi
exit 0
