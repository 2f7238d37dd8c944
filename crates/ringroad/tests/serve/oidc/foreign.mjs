// A provider by oidc-provider (npm), with one client whose redirect URI is an argument. Prints its issuer when it is ready.
// Arguments: the directory of npm's packages, the redirect URI, the URI after a logout.
import http from 'node:http';

const [modules, redirectUri, afterLogout] = process.argv.slice(2);
const { default: Provider } = await import(`${modules}/oidc-provider/lib/index.js`);
const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'client one', client_secret: 's/ecret:', redirect_uris: [redirectUri],
      post_logout_redirect_uris: [afterLogout], response_types: ['code'], grant_types: ['authorization_code', 'refresh_token'],
    }],
    pkce: { required: () => true },
    claims: { openid: ['sub'], email: ['email'] },
    findAccount: async (_, id) => ({ accountId: id, claims: async () => ({ sub: id, email: `${id}@example.com` }) }),
    cookies: { keys: ['for tests'] },
  });
  provider.on('server_error', (_, error) => console.error(error));
  server.on('request', provider.callback());
  console.log(issuer);
});
