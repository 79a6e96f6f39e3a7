# The daemons are those of the new version, and no process of the old one is left.
healthy
[ "$(dpkg-query -W -f '${Version}' zmailer)" = 0.1.1-1 ] || fail "$(dpkg-query -W zmailer)"
[ "$(ls -l /proc/[0-9]*/exe 2>/dev/null | grep 'zmailer.*(deleted)')" = "" ] || fail "the old version runs on: $(ls -l /proc/[0-9]*/exe | grep deleted)"
send 'after the upgrade' alice
once 'after the upgrade' /var/mail/alice
