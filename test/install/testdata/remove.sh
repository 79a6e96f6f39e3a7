# Away with it, but for the mail.
picture >/tmp/before
dpkg -r zmailer
same "the removal"
[ ! -e /usr/sbin/sendmail ] && [ ! -e /usr/bin/mailq ] || fail "sendmail is still there"
[ -e /etc/zmailer/zmailer.conf ] || fail "a removal leaves the configuration"
dpkg -P zmailer
same "the purge"
[ ! -e /etc/zmailer/zmailer.conf ] || fail "zmailer.conf is still there"
getent passwd zmailer || fail "the mail has lost its owner"
[ "$(find / -xdev -path $spool -prune -o \( -name '*zmailer*' -o -lname '*zmailer*' \) -print | grep -v -e '^/tmp/' -e '^/var/log/' -e '^/var/lib/dpkg/' -e '^/root/' -e '^/home/' -e '^/[^/]*\.deb$' -e '^/[^/]*\.rpm$')" = "" ] ||
	fail "left: $(find / -xdev -name '*zmailer*')"

# And back.
dpkg -i "$1"
zmctl queue | grep ann@far.example || fail "what waited is gone"
dpkg -P zmailer
