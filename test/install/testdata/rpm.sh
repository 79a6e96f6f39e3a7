# After rpm has been told to install it: what its scripts have made works.
begin
printf 'Subject: by rpm\n\nBy rpm.\n' | sendmail alice
await grep -q 'By rpm.' /var/mail/alice
zmctl queue | grep ann@far.example || fail "what waited is gone"
end
