<?php
// Every URL without a file is passed to this script.
$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
$is_member = isset($_COOKIE['session']);

function page(string $title, string $text): void
{
    header('Content-Type: text/html; charset=utf-8');
    echo '<!doctype html><link rel="stylesheet" href="/style.css"><title>', htmlspecialchars($title), '</title><h1>',
        htmlspecialchars($title), '</h1><p>', $text, "</p>\n";
}

if ($path === '/') {
    header($is_member ? 'Cache-Control: no-store' : 'Cache-Control: max-age=10');
    page('Start', $is_member ? 'Welcome back.' : 'Hello, visitor. Made at ' . microtime(true) . '.');
} elseif (preg_match('#^/article/(\d+)$#', $path, $match)) {
    header('Cache-Control: max-age=10');
    page("Article $match[1]", 'Made at ' . microtime(true) . '.');
} elseif ($path === '/login') {
    setcookie('session', 'demo', ['path' => '/', 'httponly' => true]);
    setcookie('theme', 'light', ['path' => '/']);
    header('Location: /', true, 303);
} elseif ($path === '/upload' && $_SERVER['REQUEST_METHOD'] === 'POST') {
    $file = $_FILES['file'] ?? null;
    if ($file === null || $file['error'] !== UPLOAD_ERR_OK) {
        http_response_code(400);
        exit("no file\n");
    }
    header('Content-Type: text/plain');
    echo $file['name'], ' ', $file['size'], ' ', md5_file($file['tmp_name']), "\n";
} elseif ($path === '/report') {
    header('Content-Type: text/plain');
    for ($line = 1; $line <= 3; $line++) {
        echo "line $line\n";
        flush();
    }
} else {
    http_response_code(404);
    page('Not here', htmlspecialchars($path));
}
