#!/bin/sh
# Puts the programs, built in BIN, with units, manual pages and configuration below DESTDIR:
# make install calls it. What is there of the configuration stays.
set -eu
: "${BIN:=bin}" "${DESTDIR:=}" "${PREFIX:=/usr/local}" "${SYSCONFDIR:=/etc}" "${SPOOLDIR:=/var/spool/postoffice}"
: "${LIBEXECDIR:=$PREFIX/libexec/zmailer}" "${UNITDIR:=$PREFIX/lib/systemd/system}"
: "${MAN:=bin/man}" "${LINKS:=yes}" "${COMPRESS:=no}"
here=$(dirname "$0")
umask 022

put() { # mode, file, where
	mkdir -p "$DESTDIR$(dirname "$3")"
	install -m "$1" "$2" "$DESTDIR$3"
}

fill() { # a template to standard output
	sed -e "s|@LIBEXECDIR@|$LIBEXECDIR|g" -e "s|@SYSCONFDIR@|$SYSCONFDIR|g" -e "s|@SPOOLDIR@|$SPOOLDIR|g" "$1"
}

template() { # file, where
	mkdir -p "$DESTDIR$(dirname "$2")"
	fill "$1" >"$DESTDIR$2"
	chmod 644 "$DESTDIR$2"
}

link() { # to, name
	mkdir -p "$DESTDIR$(dirname "$2")"
	ln -sf "$1" "$DESTDIR$2"
}

programs() {
	for program in "$BIN"/*; do
		if [ -f "$program" ]; then put 755 "$program" "$LIBEXECDIR/$(basename "$program")"; fi
	done
	link ../libexec/zmailer/zmctl "$PREFIX/sbin/zmctl"
	# Packages leave these to the system's alternatives.
	if [ "$LINKS" = yes ]; then
		link ../libexec/zmailer/submit "$PREFIX/sbin/sendmail"
		link ../libexec/zmailer/zmctl "$PREFIX/bin/mailq"
		link ../libexec/zmailer/zmctl "$PREFIX/bin/newaliases"
	fi
}

service() {
	for unit in "$here"/systemd/zmailer*; do
		name=$(basename "$unit" .in)
		template "$unit" "$UNITDIR/$name"
	done
	template "$here/systemd/sysusers.conf" "$PREFIX/lib/sysusers.d/zmailer.conf"
	template "$here/systemd/tmpfiles.conf" "$PREFIX/lib/tmpfiles.d/zmailer.conf"
}

documentation() {
	for section in 5 7 8; do
		for page in "$MAN/man$section"/*."$section"; do
			[ -e "$page" ] || continue
			put 644 "$page" "$PREFIX/share/man/man$section/$(basename "$page")"
			if [ "$COMPRESS" = yes ]; then gzip -9nf "$DESTDIR$PREFIX/share/man/man$section/$(basename "$page")"; fi
		done
	done
	if [ "$LINKS" = yes ] && [ -e "$MAN/man8/submit.8" ]; then
		gz=
		if [ "$COMPRESS" = yes ]; then gz=.gz; fi
		link "submit.8$gz" "$PREFIX/share/man/man8/sendmail.8$gz"
		link "../man8/zmctl-queue.8$gz" "$PREFIX/share/man/man1/mailq.1$gz"
		link "../man8/zmctl-check-config.8$gz" "$PREFIX/share/man/man1/newaliases.1$gz"
	fi
	for file in "$here"/prometheus/*.rules.yml "$here"/grafana/*.json; do
		if [ -e "$file" ]; then put 644 "$file" "$PREFIX/share/zmailer/$(basename "$file")"; fi
	done
	put 644 "$here/fail2ban/zmailer.conf" "$PREFIX/share/zmailer/fail2ban/zmailer.conf"
	put 755 "$here/certbot/certbot-deploy" "$PREFIX/share/zmailer/certbot-deploy"
	for page in "$here"/../docs/*.md "$here"/../README.md "$here"/../CHANGELOG.md; do
		put 644 "$page" "$PREFIX/share/doc/zmailer/$(basename "$page")"
	done
	for shell in bash/bash-completion/completions/zmctl zsh/zsh/site-functions/_zmctl fish/fish/vendor_completions.d/zmctl.fish; do
		where="$PREFIX/share/${shell#*/}"
		if said=$("$BIN/zmctl" completion "${shell%%/*}" 2>/dev/null); then
			mkdir -p "$DESTDIR$(dirname "$where")"
			printf '%s\n' "$said" >"$DESTDIR$where"
		fi
	done
}

# The defaults, and what a machine wants whose daemons have a user of their own.
configuration() {
	conf="$DESTDIR$SYSCONFDIR/zmailer"
	new=$(mktemp -d)
	ZCONFIG= "$BIN/zmctl" --postoffice "$new/postoffice" init --config-dir "$new/conf" >/dev/null
	sed -i -e "s|^POSTOFFICE=.*|POSTOFFICE=$SPOOLDIR|" -e 's|^#SMTPLISTEN=.*|SMTPLISTEN=127.0.0.1:25|' \
		-e 's|^#DAEMONUSER=.*|DAEMONUSER=zmailer|' "$new/conf/zmailer.conf"
	mkdir -p "$conf"
	for file in "$new"/conf/*; do
		if [ ! -e "$conf/$(basename "$file")" ]; then install -m 644 "$file" "$conf/"; fi
	done
	rm -rf "$new"
	if [ ! -e "$DESTDIR$SYSCONFDIR/logrotate.d/zmailer" ]; then put 644 "$here/conf/logrotate" "$SYSCONFDIR/logrotate.d/zmailer"; fi
}

programs
service
documentation
configuration
