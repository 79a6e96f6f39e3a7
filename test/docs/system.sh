# A mail system for the pages that look at a running one: the postoffice
# /var/spool/postoffice, its configuration in /etc/zmailer, alice and bob with Maildirs below
# /srv/mail, three hosts of others at ports of loopback, the log in /var/log/zmailer.log. What
# the page has written before stays. The shell stands in the postoffice then, as root's may. "down" and
"up" in a later comment stop and start the daemons; the log begins anew then.
mkdir -p /srv/mail /etc/zmailer
test -e /etc/zmailer/users || printf 'alice\nbob\n' > /etc/zmailer/users
test -e /etc/zmailer/routes || cat > /etc/zmailer/routes <<'END'
far.example    smtp![127.0.0.1]:2626
slow.example   smtp![127.0.0.1]:2627
team.example   smtp![127.0.0.1]:2628
END
zmctl --postoffice /var/spool/postoffice init --config-dir /etc/zmailer >/dev/null &&
cat >> /etc/zmailer/zmailer.conf <<'END' &&
HOSTNAME=mta.example
SMTPLISTEN=127.0.0.1:2525
LOCALUSERS=/etc/zmailer/users
MAILBOX=/srv/mail/%u/
LOG=text
END
printf '%s\n' "$docs_settings" >> /etc/zmailer/zmailer.conf &&
export ZCONFIG=/etc/zmailer/zmailer.conf && cd /var/spool/postoffice || return 1
# up runs the daemons and waits until they are ready; down stops them.
up() {
	: > /var/log/zmailer.log
	zmctl run >/dev/null 2>/var/log/zmailer.log &
	docs_n=0
	for docs_word in 'listening.*program=smtpserver' 'started program=router' query-served; do
		until grep -qs "$docs_word" /var/log/zmailer.log; do
			docs_n=$((docs_n+1)); sleep 0.1
			test $docs_n -lt 300 && kill -0 $! || { cat /var/log/zmailer.log; return 1; }
		done
	done
}
down() { kill %?zmctl; wait %?zmctl; }
up
