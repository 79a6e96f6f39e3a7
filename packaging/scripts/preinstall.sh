#!/bin/sh
# Debian: install or upgrade; RPM: 1 or 2. Makes the daemons' user.
set -e
# One that an installation left behind which did not get to its end says nothing of this one.
rm -f /run/zmailer.new
if ! getent group zmailer >/dev/null; then groupadd --system zmailer; fi
if ! getent passwd zmailer >/dev/null; then
	shell=/usr/sbin/nologin
	[ -e $shell ] || shell=/sbin/nologin
	useradd --system --gid zmailer --home-dir /var/spool/postoffice --no-create-home --shell $shell --comment 'Mail system' zmailer
fi
# dpkg tells postinstall of a package that was removed, but not purged, as of an upgrade.
if [ "$1" = install ] && [ -d /run ]; then : >/run/zmailer.new; fi
exit 0
