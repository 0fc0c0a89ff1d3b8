// Signatures of the Android framework that the wrapper calls: compiled against, never shipped.
package android.graphics

public class Bitmap {
    public fun getWidth(): Int = throw UnsupportedOperationException()

    public fun getHeight(): Int = throw UnsupportedOperationException()

    public fun getPixels(pixels: IntArray, offset: Int, stride: Int, x: Int, y: Int, width: Int, height: Int): Unit = throw UnsupportedOperationException()
}
