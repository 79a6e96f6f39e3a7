#!/bin/sh
# Debian: remove, upgrade, purge or an installation that failed; RPM: 0 is the removal. The postoffice and its user
# stay: there may be mail in it, and files without an owner could become somebody else's.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
case "$1" in
abort-install) rm -f /run/zmailer.new ;;
purge | 0)
	if [ -d /var/spool/postoffice ]; then
		echo "zmailer: /var/spool/postoffice stays, with all mail that is in it, and so does the user zmailer"
	fi
	;;
esac
exit 0
